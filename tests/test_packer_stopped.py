"""Packings that are stopped, killed, refused or mistyped, and the command."""

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dietcl.errors import UserError
from dietcl.streams import packer
from dietcl.streams.index import open_manifest
from dietcl.streams.manifest import write_manifest
from dietcl.streams.options import Packing
from dietcl.streams.packer import Packed, pack
from helpers.pack_sources import BAD, COUNT, FACTS, FORMATS, SIDE, columns, make_source, stored
from helpers.prepared import dietcl


def content(folder: Path) -> tuple[str, list[bytes]]:
    """What must not depend on how often a packing was stopped."""
    hash = open_manifest(folder / "manifest.parquet").hash
    return hash, [path.read_bytes() for path in sorted(folder.glob("images*"))]


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("stop", [3, 7, 9, 14, 21, 24])
def test_a_packing_that_was_stopped_goes_on(source: Path, tmp_path: Path, form: str, stop: int) -> None:
    packing, out = Packing(side=SIDE, format=form), tmp_path / "out"

    def until(done: int, total: int) -> None:
        assert total == COUNT
        if done >= stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(source, out, packing, until)
    assert not (out / "manifest.parquet").exists()
    shards = {path: path.stat().st_mtime_ns for path in out.glob("*.tar")}
    assert len(shards) == (0 if form == "raw" else (stop - 1) // 7)
    told: list[int] = []
    packed = pack(source, out, packing, lambda done, total: told.append(done))
    assert told == sorted(told)
    assert told[-1] == COUNT
    assert {path: path.stat().st_mtime_ns for path in shards} == shards  # what was whole is not written again
    whole = pack(source, tmp_path / "whole", packing)
    assert dataclasses.astuple(packed)[1:] == dataclasses.astuple(whole)[1:]
    assert content(out) == content(tmp_path / "whole")
    assert (out / "quarantine.csv").read_text() == (tmp_path / "whole" / "quarantine.csv").read_text()
    assert not (out / ".packing").exists()


CHILD = """
import sys, time
from pathlib import Path
from dietcl.streams import packer
from dietcl.streams.options import Packing
packer.SHARD, packer._AT_ONCE = 7, 3
def tell(done, total):
    print(done, flush=True)
    time.sleep(0.05)
packer.pack(Path(sys.argv[1]), Path(sys.argv[2]), Packing(side=24, format=sys.argv[3]), tell)
"""


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("form", ["jpeg", "raw"])
def test_a_packing_that_was_killed_goes_on(source: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(source), str(out), form], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) >= 9:
            break
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=30)
    child.stdout.close()
    assert child.returncode == -signal.SIGKILL
    assert not (out / "manifest.parquet").exists()
    first = out / "images-00000.tar"
    written = first.stat().st_mtime_ns if form == "jpeg" else None
    packing = Packing(side=SIDE, format=form)
    pack(source, out, packing)
    pack(source, tmp_path / "whole", packing)
    assert content(out) == content(tmp_path / "whole")
    assert written is None or first.stat().st_mtime_ns == written


@pytest.mark.parametrize("form", ["jpeg", "raw"])
@pytest.mark.parametrize("moment", ["write_json", "open_memmap", "savez", "rmtree", "Writer"])
def test_a_stop_at_an_odd_moment(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, moment: str
) -> None:
    owner = {"open_memmap": np.lib.format, "savez": np, "rmtree": packer.shutil}.get(moment, packer)
    packing, out = Packing(side=SIDE, format=form), tmp_path / "out"

    real = getattr(owner, moment)

    def die(*arguments: Any, **options: Any) -> Any:
        if moment == "open_memmap" and "w+" not in arguments:
            return real(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, moment, die)
        if moment != "open_memmap" or form == "raw":
            with pytest.raises(KeyboardInterrupt):
                pack(source, out, packing)
    if moment == "rmtree":  # the very last thing: all is there already
        with pytest.raises(UserError, match="holds a manifest already"):
            pack(source, out, packing)
    else:
        pack(source, out, packing)
    pack(source, tmp_path / "whole", packing)
    assert content(out) == content(tmp_path / "whole")


@pytest.mark.usefixtures("small_shards")
def test_an_unfinished_packing_with_other_options_is_refused(source: Path, tmp_path: Path) -> None:
    out, packing = tmp_path / "out", Packing(side=SIDE, format="jpeg")

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(source, out, packing, stop)
    before = sorted(path.name for path in out.rglob("*"))
    other = make_source(tmp_path / "other", bad=False)
    for manifest, options in (
        (source, dataclasses.replace(packing, side=32)),
        (source, dataclasses.replace(packing, format="webp")),
        (source, dataclasses.replace(packing, quality=91)),
        (other, packing),
    ):
        with pytest.raises(UserError) as caught:
            pack(manifest, out, options)
        assert str(caught.value).startswith(f"{out}: holds an unfinished packing with other options; ")
        assert "\n" not in str(caught.value)
    assert sorted(path.name for path in out.rglob("*")) == before
    assert pack(source, out, packing).kept == COUNT - len(BAD)


def test_folders_that_hold_something_are_left_alone(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match=r"out: is not empty; choose another --out"):
        pack(source, out, Packing(side=SIDE))
    assert [path.name for path in out.iterdir()] == ["letter.txt"]
    (out / "letter.txt").unlink()
    pack(source, out, Packing(side=SIDE))
    with pytest.raises(UserError, match=r"out: holds a manifest already; choose another --out"):
        pack(source, out, Packing(side=SIDE))
    with pytest.raises(UserError, match="holds a manifest already"):
        pack(source, source.parent, Packing(side=SIDE))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file: cannot be created"):
        pack(source, tmp_path / "file", Packing(side=SIDE))
    with pytest.raises(UserError, match=r"none\.parquet: no such manifest"):
        pack(tmp_path / "none.parquet", tmp_path / "new", Packing(side=SIDE))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_that_can_be_read(tmp_path: Path, form: str) -> None:
    rows = columns()
    manifest = write_manifest(tmp_path / "in" / "manifest.parquet", rows, FACTS)
    with pytest.raises(UserError, match="in/photos: the folder that the manifest names is not there"):
        pack(manifest, tmp_path / "out", Packing(side=SIDE, format=form))
    (tmp_path / "in" / "photos").mkdir()
    with pytest.raises(UserError) as caught:
        pack(manifest, tmp_path / "out", Packing(side=SIDE, format=form))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{manifest}: not one image can be read")
    assert not (tmp_path / "out" / "manifest.parquet").exists()
    named = Path(message.partition("see ")[2].partition(";")[0])
    assert len(named.read_text().splitlines()) == COUNT + 1
    # Once the disk with the images is there, the same command does its work.
    make_source(tmp_path / "in")
    write_manifest(manifest, rows, FACTS)
    assert pack(manifest, tmp_path / "out", Packing(side=SIDE, format=form)).kept == COUNT - len(BAD)


# The command.


def test_the_command(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_source(tmp_path / "my photos")
    monkeypatch.chdir(tmp_path / "my photos")
    plain = dietcl(capsys, "data", "pack", "manifest.parquet", "--side", SIDE)
    assert plain.code == 0, plain.said
    out = tmp_path / f"my photos-{SIDE}"  # beside the manifest's folder
    assert f"{COUNT - len(BAD)} images in" in plain.said
    assert f"{len(BAD)} unreadable images left out: {out / 'quarantine.csv'}" in plain.out
    assert f"next: dietcl train --stream '{out / 'manifest.parquet'}'" in plain.out
    assert len(stored(out)) == COUNT - len(BAD)
    assert (out / "images.npy").is_file()  # small ones are raw

    as_json = dietcl(
        *(capsys, "data", "pack", "manifest.parquet", "--side", 72, "--format", "webp", "--quality", 50),
        *("--out", "../elsewhere", "--json"),
    )
    assert as_json.code == 0, as_json.said
    found = json.loads(as_json.out)
    assert Packed(**{**found, "manifest": Path(found["manifest"])}).kept == COUNT - len(BAD)
    assert found["bad"] == len(BAD)
    assert found["bytes"] == (tmp_path / "elsewhere/images-00000.tar").stat().st_size
    with tarfile.open(tmp_path / "elsewhere/images-00000.tar") as tar:
        assert {name.rpartition(".")[2] for name in tar.getnames()} == {"webp"}
    again = dietcl(capsys, "data", "pack", "manifest.parquet", "--out", "../elsewhere")
    assert again.code == 2
    assert "holds a manifest already" in again.err


def test_the_command_goes_on_or_starts_over(capsys: Any, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    for form, other in (("jpeg", "webp"), ("raw", "jpeg")):
        with pytest.raises(KeyboardInterrupt):
            pack(source, out, Packing(side=SIDE, format=form), stop)
        options = ["data", "pack", source, "--out", out, "--side", SIDE, "--format", other]
        refused = dietcl(capsys, *options)
        assert refused.code == 2
        assert "--fresh" in refused.err
        done = dietcl(capsys, *options, "--fresh", "--json")
        assert done.code == 0, done.said
        assert {path.name for path in out.glob("images*")} == {"images-00000.tar"}
        pack(source, tmp_path / f"whole-{other}", Packing(side=SIDE, format=other))
        assert content(out) == content(tmp_path / f"whole-{other}")
        for path in out.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["The manifest (.parquet)"]),
        (["none.parquet"], ["none.parquet: no such manifest"]),
        (["{source}", "--side", "7"], ["--side 7", "8 to 4096"]),
        (["{source}", "--side", "5000"], ["--side 5000"]),
        (["{source}", "--side", "wide"], ["--side", "wide"]),
        (["{source}", "--quality", "0"], ["--quality 0", "1 to 100"]),
        (["{source}", "--quality", "101"], ["--quality 101"]),
        (["{source}", "--format", "gif"], ["--format", "gif"]),
        (["{source}", "--depth", "3"], ["--depth"]),
        (["{source}", "--out", "taken"], ["taken"]),
        (["{source}", "--out", "full"], ["full: is not empty"]),
        (["text.parquet", "--out", "new"], ["text.parquet: not a readable Parquet file"]),
    ],
)
def test_wrong_options_get_a_sentence_and_exit_code_2(
    capsys: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    (tmp_path / "text.parquet").write_text("words")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    result = dietcl(capsys, "data", "pack", *(option.format(source=source) for option in options))
    assert result.code == 2, result.said
    assert all(word in result.said for word in words), result.said
    assert "Traceback" not in result.said
    assert [path for path in sorted(tmp_path.rglob("*")) if path.suffix != ".index"] == before


def test_ctrl_c_is_no_traceback(source: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom dietcl.streams import packer\nfrom dietcl.cli.main import main\n"
        "packer.SHARD, packer._AT_ONCE = 7, 3\nshard = packer._pack_shard\n"
        "def slow(*arguments):\n    print('at work', flush=True)\n    time.sleep(0.3)\n    shard(*arguments)\n"
        "packer._pack_shard = slow\nsys.exit(main(sys.argv[1:]))"
    )
    arguments = ["data", "pack", str(source), "--out", str(tmp_path / "out"), "--side", "24"]
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has them and their children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "at work\n"
    time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in said
    assert not (tmp_path / "out" / "manifest.parquet").exists()
