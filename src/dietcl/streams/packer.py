"""Packs the images of a manifest: resized once and stored for random access, as squares or as encoded bytes."""

import io
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg
import torch
from PIL import Image

from dietcl.errors import UserError, reason
from dietcl.files import IMAGES, MANIFEST, make_folder, write_json
from dietcl.streams.decode import Pixels
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.image_writer import ShardWriter, member_name
from dietcl.streams.index import Index, open_manifest
from dietcl.streams.manifest import Writer, batches, read_facts
from dietcl.streams.options import Packing
from dietcl.streams.quarantine import QUARANTINE, Quarantine
from dietcl.streams.storage import Rows, Storage, resize, spread

SHARD = 32_768  # images a shard: about 700 MB at 224 px
_SHARD_NAME = "images-{:05d}.tar"
_AT_ONCE = 512
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Packed:
    """What came out of a packing."""

    manifest: Path
    kept: int
    bad: int
    bytes: int


def pack(manifest: Path, out: Path, packing: Packing, progress: Progress = lambda done, total: None) -> Packed:
    """Pack a manifest's images into the folder `out`; an interrupted packing is continued."""
    if (out / MANIFEST).exists():
        raise UserError(f"{out}: holds a manifest already; choose another --out, or remove it first")
    index = open_manifest(manifest)
    work = _begin(out, index, packing)
    storage = Storage(index, packing.side, bad_share=1.0)
    for number, start in enumerate(range(0, len(index), SHARD)):
        rows = np.arange(start, min(start + SHARD, len(index)))
        if not (work / f"{number:05d}.npz").exists():
            _pack_shard(storage, rows, number, out, work, packing, progress)
        progress(int(rows[-1]) + 1, len(index))
    kept = _finish(manifest, out, work, index, packing)
    size = sum(path.stat().st_size for path in out.glob("images*"))
    return Packed(out / MANIFEST, kept, len(index) - kept, size)


def _begin(out: Path, index: Index, packing: Packing) -> Path:
    """Claim a folder for this packing alone."""
    work = make_folder(out) / ".packing"
    plan = {"manifest": index.hash, **asdict(packing)}
    if (work / "plan.json").exists():
        if json.loads((work / "plan.json").read_text()) != plan:
            raise UserError(f"{out}: holds an unfinished packing with other options; choose another --out or --fresh")
    elif any(path != work for path in out.iterdir()):
        raise UserError(f"{out}: is not empty; choose another --out")
    else:
        write_json(make_folder(work) / "plan.json", plan)
    if packing.is_raw and not (out / IMAGES).exists():
        shape = (len(index), packing.side, packing.side, 3)
        np.lib.format.open_memmap(work / IMAGES, "w+", np.uint8, shape).flush()
        (work / IMAGES).replace(out / IMAGES)
    return work


def _pack_shard(
    storage: Storage, rows: Rows, number: int, out: Path, work: Path, packing: Packing, progress: Progress
) -> None:
    """Write the images of one shard, and then where each of them went."""
    offset, length = np.full(len(rows), -1), np.full(len(rows), -1)
    squares = np.lib.format.open_memmap(out / IMAGES, "r+") if packing.is_raw else None
    shard = None if packing.is_raw else ShardWriter(work, f"images-{number:05d}", most_bytes=2**62)
    for start in range(0, len(rows), _AT_ONCE):
        part = rows[start : start + _AT_ONCE]
        if squares is not None:
            squares[part] = storage.read(part).permute(0, 2, 3, 1).numpy()
            offset[start : start + len(part)] = part
        elif shard is not None:
            for i, data in enumerate(_encoded(storage, part, packing), start=start):
                if int(rows[i]) not in storage.bad:
                    _, offset[i], length[i] = shard.add(member_name(int(rows[i]), data), data)
        progress(int(part[-1]) + 1, len(storage.index))
    bad = np.array([row for row in rows.tolist() if row in storage.bad], np.int64)
    offset[bad - rows[0]] = -1
    if squares is not None:
        squares.flush()
    elif shard is not None:
        shard.close()
        shard.path.replace(out / _SHARD_NAME.format(number))
    reasons = np.array([storage.bad[row] for row in bad.tolist()], dtype=np.str_)
    partial = work / "partial.npz"
    np.savez(partial, offset=offset, length=length, bad=bad, reasons=reasons)
    partial.replace(work / f"{number:05d}.npz")


def _encoded(storage: Storage, rows: Rows, packing: Packing) -> list[bytes]:
    pictures = storage.pictures(rows)

    def one(i: int) -> bytes:
        try:
            return encode(shrink(pictures[i], packing.side), packing)
        except ValueError as error:  # each format has a longest side
            storage.bad[int(rows[i])] = f"cannot be encoded ({reason(error)})"
            return b""

    return spread(storage.pool, one, len(pictures))


def shrink(picture: Pixels, side: int) -> Pixels:
    """Return a picture whose shorter side has at most `side` pixels."""
    height, width = picture.shape[:2]
    if min(height, width) <= side:
        return picture
    scale = side / min(height, width)
    size = (max(side, round(height * scale)), max(side, round(width * scale)))
    return resize(torch.from_numpy(picture).permute(2, 0, 1)[None], size)[0].permute(1, 2, 0).numpy()


def encode(picture: Pixels, packing: Packing) -> bytes:
    """Return a picture as JPEG or WebP."""
    picture = np.ascontiguousarray(picture)
    if packing.format == "webp":
        stream = io.BytesIO()
        Image.fromarray(picture).save(stream, "WEBP", quality=packing.quality, method=2)
        return stream.getvalue()
    data: bytes = simplejpeg.encode_jpeg(picture, packing.quality, "RGB", "420")
    return data


def _finish(manifest: Path, out: Path, work: Path, index: Index, packing: Packing) -> int:
    """Write the manifest of what was packed and the quarantine of what was not, and remove the work folder."""
    root, shards = FileRoot.of(index.root), range(-(-len(index) // SHARD))
    names = pa.array([IMAGES if packing.is_raw else _SHARD_NAME.format(number) for number in shards])
    with (
        pq.ParquetFile(manifest) as file,
        Writer(work / MANIFEST, replace(read_facts(manifest), root=".")) as writer,
        closing(Quarantine(work / QUARANTINE)) as quarantine,
    ):
        parts = [np.load(work / f"{number:05d}.npz") for number in shards]
        offset, length = (np.concatenate([part[name] for part in parts]) for name in ("offset", "length"))
        for part in parts:
            for row, sentence in zip(part["bad"].tolist(), part["reasons"].tolist(), strict=True):
                quarantine.add(root.path(index.files[index.file[row]]), row, sentence)
        start = 0
        for table in batches(file, manifest):
            numbers = np.arange(start, start + len(table))
            lengths = pa.array(length[numbers], mask=length[numbers] < 0)
            packed = table.set_column(1, "file", names.take(pa.array(numbers // SHARD)))
            packed = packed.set_column(2, "offset", pa.array(offset[numbers])).set_column(6, "length", lengths)
            writer.write(packed.filter(pa.array(offset[numbers] >= 0)))
            start += len(table)
    if not (kept := int((offset >= 0).sum())):
        for path in work.glob("*.npz"):  # so that a repeated command reads the images again
            path.unlink()
        raise UserError(f"{manifest}: not one image can be read; see {work / QUARANTINE}")
    for name in (QUARANTINE, MANIFEST):
        (work / name).replace(out / name)
    shutil.rmtree(work)
    return kept
