"""Data in an S3 bucket: the same rows as from a copy on disk, and one sentence for what goes wrong."""

import csv
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import boto3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from moto.server import ThreadedMotoServer
from PIL import Image

from dietcl.errors import UserError
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import read_facts
from dietcl.streams.sources.readers.folder import Folder
from dietcl.streams.sources.readers.huggingface import HuggingFace
from dietcl.streams.sources.readers.table import Table
from dietcl.streams.sources.readers.tar import Tar
from dietcl.streams.sources.registry import Reader, prepare
from dietcl.streams.storage import Storage
from helpers.distributed_runs import together
from helpers.prepared import rows
from helpers.runs import outcome

BUCKET = "photos"


def image(color: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (color, 90, 200)).save(stream, "PNG")
    return stream.getvalue()


def fill(root: Path) -> None:
    """Write data of all kinds, each with something bad in it."""
    for number in range(4):
        folder = root / "folder" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(image(50 * number))
    (root / "folder" / "cat" / "broken.png").write_bytes(image(0)[:30])
    (root / "folder" / "cat" / "empty.png").write_bytes(b"")
    lines = [
        "path,label,time",
        "dog/0.png,dog,3",
        "./cat/1.png,,2",
        "cat/broken.png,cat,1",
        "none.png,a,1",
        "../x.png,a,1",
    ]
    (root / "folder" / "table.csv").write_text("\n".join(lines))
    pq.write_table(
        pa.table({"path": ["cat/3.png", "dog/none.png"], "label": [1, 2]}), root / "folder" / "table.parquet"
    )
    for name in ("tar/train-0.tar", "tar/test-0.tar"):
        (root / "tar").mkdir(exist_ok=True)
        with tarfile.open(root / name, "w") as tar:
            for member, data in [
                ("a.png", image(9)),
                ("a.json", b'{"label": "x", "time": 4}'),
                ("b.png", b"no"),
                ("/c.png", image(1)),
            ]:
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    cut = (root / "tar" / "train-0.tar").read_bytes()
    (root / "tar" / "train-1.tar").write_bytes(cut[: 2 * 1024 + 600])
    (root / "hub").mkdir()
    info = {"info": {"features": {"label": {"names": ["owl", "elk"]}}}}
    table = pa.table({"image": [{"bytes": image(77), "path": None}, None], "label": [1, 0], "time": [1.5, 2.5]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(info)}), root / "hub" / "train-0.parquet")
    (root / "hub" / "train-1.parquet").write_bytes(b"PAR1")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("local")
    fill(root)
    return root


@pytest.fixture(scope="module")
def bucket(local: Path) -> Iterator[str]:
    """Serve a copy from a bucket, found through the environment only, as a user would."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.delenv("AWS_PROFILE", raising=False)
        s3fs.S3FileSystem.clear_instance_cache()
        client = boto3.client("s3")
        client.create_bucket(Bucket=BUCKET)
        for path in sorted(local.rglob("*")):
            if path.is_file():
                client.put_object(Bucket=BUCKET, Key=str(path.relative_to(local)), Body=path.read_bytes())
        yield f"s3://{BUCKET}"
        s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def quarantine(out: Path) -> list[tuple[str, str, str]]:
    with (out / "quarantine.csv").open(newline="", encoding="utf-8") as file:
        return [(row["file"], row["row"], row["problem"].partition("(")[0]) for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("reader", "path", "root", "kept", "bad"),
    [
        (Folder(), "folder", "folder", 4, 4),
        (Table(), "folder/table.csv", "folder", 2, 3),
        (Table(), "folder/table.parquet", "folder", 1, 1),
        (Tar(), "tar", "tar", 3, 6),
        (Tar(), "tar/test-0.tar", "tar", 1, 2),
        (HuggingFace(), "hub", None, 1, 2),
        (HuggingFace(), "hub/train-0.parquet", None, 1, 1),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "name", ""),
)
def test_the_same_rows_as_from_disk(
    bucket: str, local: Path, tmp_path: Path, reader: Reader, path: str, root: str | None, kept: int, bad: int
) -> None:
    near = prepare(reader, str(local / path), tmp_path / "near")
    far = prepare(reader, f"{bucket}/{path}", tmp_path / "far")
    assert rows(near) == rows(far)
    assert (near.kept, far.kept) == (kept, kept)
    # What a store says in brackets, and how it names an address there, differs.
    assert quarantine(tmp_path / "far") == quarantine(tmp_path / "near")
    assert len(quarantine(tmp_path / "far")) == bad
    assert read_facts(far.manifest).root == (f"{bucket}/{root}" if root else ".")
    assert read_facts(far.manifest).recipe == read_facts(near.manifest).recipe
    index = open_manifest(far.manifest)
    assert index.hash == open_manifest(near.manifest).hash
    every = np.arange(kept)
    assert np.array_equal(Storage(index, 8).read(every), Storage(open_manifest(near.manifest), 8).read(every))


def test_recognition(bucket: str) -> None:
    for reader, folder in ((Tar, "tar"), (HuggingFace, "hub")):
        assert [kind for kind in (Tar, HuggingFace) if kind.fits(FileRoot.of(f"{bucket}/{folder}"), "")] == [reader]
    assert Table.fits(FileRoot.of(f"{bucket}/folder"), "table.parquet")
    assert not Table.fits(FileRoot.of(f"{bucket}/hub"), "train-0.parquet")


@pytest.mark.parametrize(
    "address",
    ["s3://no-such-bucket", "s3://no-such-bucket/a/table.csv", f"s3://{BUCKET}/none", f"s3://{BUCKET}/none.tar"],
)
@pytest.mark.parametrize("reader", [Folder(), Table(), Tar(), HuggingFace()], ids=lambda reader: reader.name)
def test_what_is_not_there_is_one_sentence(bucket: str, tmp_path: Path, reader: Reader, address: str) -> None:
    with pytest.raises(UserError, match="check the path") as error:
        prepare(reader, address, tmp_path / "out")
    assert address in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "manifest.parquet").exists()


def test_a_bucket_that_may_not_be_read_is_one_sentence(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError("Access Denied")

    place = FileRoot.of(f"{bucket}/folder")
    for name in ("isdir", "exists", "find", "ls", "open"):
        monkeypatch.setattr(place._remote, name, refuse)
    for ask in (
        place.is_folder,
        place.folders,
        lambda: place.has("a"),
        lambda: list(place.files()),
        lambda: place.open("a"),
    ):
        with pytest.raises(UserError, match=r"s3://photos/folder.*: cannot be read \(Access Denied\); check the URL"):
            ask()


@pytest.mark.long
def test_several_processes_read_each_its_own_images_from_the_store(bucket: str, tmp_path: Path) -> None:
    client, near = boto3.client("s3"), tmp_path / "near"
    for number in range(48):
        path = near / ("test" if number >= 36 else "train") / f"class{number % 6}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (number * 5, 40 * (number % 6), 90)).save(path)
        client.put_object(Bucket=BUCKET, Key=f"many/{path.relative_to(near)}", Body=path.read_bytes())
    ends = []
    for place, processes in ((str(near), 1), (f"{bucket}/many", 2)):
        made = prepare(Folder(), place, tmp_path / f"{processes}")
        together(processes, made.manifest, [{"method": "er", "folder": str(tmp_path / f"run{processes}")}])
        ends.append(outcome(tmp_path / f"run{processes}"))
    assert ends[0] == ends[1]
