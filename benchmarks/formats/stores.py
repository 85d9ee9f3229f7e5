"""Storage formats: the same encoded images written, and read by number."""

import importlib
import itertools
import mmap
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figure import Figure
from benchmarks.formats.race import AT_ONCE, Format, Race, Reader, optional
from dietcl.streams.image_reader import ImageReader
from dietcl.streams.image_writer import ShardWriter, member_name
from dietcl.streams.index import Index, open_manifest
from dietcl.streams.manifest import Facts, Writer

OURS = "our shards"
RECORD_BATCH = 1024  # images of a record batch in the Arrow file
ROW_GROUP = 64  # images of a row group in the Parquet file
CHUNK = 2**24  # bytes of a litdata chunk: several of them, as a large set has
BUFFER = 1000  # images in WebDataset's shuffle buffer


def read_all(index: Index) -> list[bytes]:
    """Return every encoded image of a pack."""
    read = _reading(ImageReader(index))
    return [read(row) for row in range(len(index))]


def storage(folder: Path, contents: list[bytes], rounds: int) -> list[Figure]:
    """Write the same encoded images in every format, and read them in random order."""
    generator = np.random.default_rng(1)
    count = len(contents)
    own_bytes = sum(map(len, contents))
    figures = [Figure("storage: images", count, "images"), Figure("storage: an image", own_bytes / count / 1e3, "kB")]
    readers: dict[str, Reader] = {}
    formats = _formats()
    folders = (folder / f"stored-{number}" for number in itertools.count())

    def write(form: Format) -> int:
        place = next(folders)
        place.mkdir()
        form.write(place, contents)
        places[form] = place
        return count

    places: dict[Format, Path] = {}
    figures += Race({name: partial(write, form) for name, form in formats.items()}).run(5).figures("write", OURS)
    for name, form in formats.items():
        place = places[form]
        size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        figures.append(Figure(f"size beyond the images' own bytes: {name}", 100 * (size / own_bytes - 1), "%"))
        readers[name] = form.open(place)
        if name == OURS:
            readers |= {f"{OURS}, {other}": reader for other, reader in _ours_otherwise(place).items()}
            if webdataset := optional("webdataset"):
                readers["WebDataset"] = _open_webdataset(webdataset, place)
        if name == "litdata":
            readers["litdata, no window"] = _open_litdata(optional("litdata"), 1, place)
        if name == "Arrow, mapped":
            readers["Arrow, mapped, one take"] = _open_arrow_to_take(place)
    wrong = sum(_differing(reader, contents) for reader in readers.values())
    figures.append(Figure("storage: images that came back different", wrong, "images", at_most=0))

    def draw() -> npt.NDArray[np.int64]:
        return generator.integers(count, size=AT_ONCE)

    def ones(one: Callable[[int], bytes]) -> int:
        return len([one(number) for number in draw().tolist()])

    def manys(many: Callable[[npt.NDArray[np.int64]], list[bytes]]) -> int:
        return sum(len(many(draw())) for _ in range(4))

    def walk(all_of_them: Callable[[], Iterator[bytes]]) -> int:
        return sum(1 for _ in all_of_them())

    one = {name: partial(ones, reader.one) for name, reader in readers.items() if reader.one}
    many = {name: partial(manys, reader.many) for name, reader in readers.items() if reader.many}
    in_order = {name: partial(walk, reader.walk) for name, reader in readers.items() if reader.walk}
    figures += Race(one).run(4 * rounds).figures("read one at random", OURS)
    figures += Race(many).run(2 * rounds).figures(f"read {AT_ONCE} at random", OURS)
    if in_order:
        in_order[OURS] = partial(manys, readers[OURS].many or _never)
        figures += Race(in_order).run(rounds).figures("read in stored order (ours: at random)", OURS)
    return figures


def _never(_: object) -> list[bytes]:
    raise NotImplementedError


def _differing(reader: Reader, contents: list[bytes]) -> int:
    """Count images that are not what was written."""
    some = np.random.default_rng(2).integers(len(contents), size=AT_ONCE)
    wrong = 0
    if reader.one:
        wrong += sum(reader.one(number) != contents[number] for number in some.tolist())
    if reader.many:
        wrong += sum(a != contents[b] for a, b in zip(reader.many(some), some.tolist(), strict=True))
    if reader.walk:
        wrong += sum(a != b for a, b in zip(sorted(reader.walk()), sorted(contents), strict=True))
    return wrong


def _formats() -> dict[str, Format]:
    formats = {
        OURS: Format(_write_ours, _open_ours),
        "plain files": Format(_write_files, _open_files),
        "Arrow, mapped": Format(_write_arrow, _open_arrow),
        "Parquet": Format(_write_parquet, _open_parquet),
    }
    if lance := optional("lance"):
        formats["Lance"] = Format(partial(_write_lance, lance), partial(_open_lance, lance))
    if litdata := optional("litdata"):
        formats["litdata"] = Format(_write_litdata, partial(_open_litdata, litdata, "auto"))
    return formats


def _write_ours(folder: Path, contents: list[bytes]) -> None:
    """Write shards, the manifest and its index: labels and times are in it, which the other formats leave out."""
    shards = ShardWriter(folder)
    files, offsets, lengths = zip(
        *(shards.add(member_name(number, data), data) for number, data in enumerate(contents)), strict=True
    )
    shards.close()
    with Writer(folder / "manifest.parquet", Facts()) as writer:
        count = len(contents)
        writer.write(
            {
                "id": pa.array(np.arange(count)).cast(pa.string()),
                "file": list(files),
                "offset": list(offsets),
                "label": ["none"] * count,
                "time": np.arange(count, dtype=np.float64),
                "split": ["train"] * count,
                "length": list(lengths),
            }
        )
    open_manifest(folder / "manifest.parquet")


def _open_ours(folder: Path) -> Reader:
    one = _reading(ImageReader(open_manifest(folder / "manifest.parquet")))
    return Reader(one, _one_by_one(one))


def _reading(gallery: ImageReader) -> Callable[[int], bytes]:
    """Return how a gallery gets at the bytes of a row."""
    return lambda row: gallery.file_root.read(gallery.file(row), *gallery.bounds(row))


def _one_by_one(one: Callable[[int], bytes]) -> Callable[[npt.NDArray[np.int64]], list[bytes]]:
    return lambda numbers: [one(number) for number in numbers.tolist()]


def _ours_otherwise(folder: Path) -> dict[str, Reader]:
    """Return ways of reading the same shards that the project did not choose: files left open, and mapped."""
    index = open_manifest(folder / "manifest.parquet")
    paths = {code: folder / index.files[code] for code in np.unique(index.file).tolist()}
    opened = {code: os.open(path, os.O_RDONLY) for code, path in paths.items()}
    mapped = {code: mmap.mmap(file, 0, prot=mmap.PROT_READ) for code, file in opened.items()}

    def pread(row: int) -> bytes:
        return os.pread(opened[int(index.file[row])], int(index.length[row]), int(index.offset[row]))

    def cut(row: int) -> bytes:
        offset = int(index.offset[row])
        return mapped[int(index.file[row])][offset : offset + int(index.length[row])]

    return {"left open": Reader(pread, _one_by_one(pread)), "mapped": Reader(cut, _one_by_one(cut))}


def _write_files(folder: Path, contents: list[bytes]) -> None:
    for number, data in enumerate(contents):
        (folder / f"{number:09d}.jpg").write_bytes(data)


def _open_files(folder: Path) -> Reader:
    root = str(folder)

    def one(number: int) -> bytes:
        with open(f"{root}/{number:09d}.jpg", "rb", buffering=0) as file:
            return file.readall()

    return Reader(one, _one_by_one(one))


def _table(contents: list[bytes]) -> pa.Table:
    return pa.table({"image": pa.array(contents, pa.large_binary())})


def _write_arrow(folder: Path, contents: list[bytes]) -> None:
    table = _table(contents)
    with pa.OSFile(str(folder / "images.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=RECORD_BATCH)


def _arrow_parts(folder: Path) -> list[pa.Array]:
    file = pa.ipc.open_file(pa.memory_map(str(folder / "images.arrow")))
    return [file.get_batch(number).column(0) for number in range(file.num_record_batches)]


def _open_arrow(folder: Path) -> Reader:
    parts = _arrow_parts(folder)

    def one(number: int) -> bytes:
        data: bytes = parts[number // RECORD_BATCH][number % RECORD_BATCH].as_py()
        return data

    return Reader(one, _one_by_one(one))


def _open_arrow_to_take(folder: Path) -> Reader:
    """Take many at once, over all record batches."""
    whole = pa.chunked_array(_arrow_parts(folder))

    def many(numbers: npt.NDArray[np.int64]) -> list[bytes]:
        found: list[bytes] = whole.take(pa.array(numbers)).to_pylist()
        return found

    return Reader(many=many)


def _write_parquet(folder: Path, contents: list[bytes]) -> None:
    table = _table(contents)
    pq.write_table(table, folder / "images.parquet", row_group_size=ROW_GROUP, compression="none", use_dictionary=False)


def _open_parquet(folder: Path) -> Reader:
    file = pq.ParquetFile(folder / "images.parquet", memory_map=True)

    def one(number: int) -> bytes:
        group = file.read_row_group(number // ROW_GROUP, use_threads=False)
        data: bytes = group.column(0)[number % ROW_GROUP].as_py()
        return data

    return Reader(one)


def _write_lance(lance: Any, folder: Path, contents: list[bytes]) -> None:
    lance.write_dataset(_table(contents), str(folder / "images.lance"))


def _open_lance(lance: Any, folder: Path) -> Reader:
    dataset = lance.dataset(str(folder / "images.lance"))

    def many(numbers: npt.NDArray[np.int64]) -> list[bytes]:
        found: list[bytes] = dataset.take(numbers.tolist()).column("image").to_pylist()
        return found

    return Reader(lambda number: many(np.array([number]))[0], many)


def _write_litdata(folder: Path, contents: list[bytes]) -> None:
    # What `litdata.optimize` writes, without the worker processes that it starts for it.
    cache = importlib.import_module("litdata.streaming.cache").Cache(str(folder), chunk_bytes=CHUNK)
    for number, data in enumerate(contents):
        cache[number] = data
    cache.done()
    cache.merge()


def _open_litdata(litdata: Any, window: int | str, folder: Path) -> Reader:
    """Read by number; the default window decodes 256 neighbors as well, so a set of 256 images says nothing."""
    dataset = litdata.StreamingDataset(str(folder), shuffle=False, batch_decode=window)

    def one(number: int) -> bytes:
        data: bytes = dataset[number]
        return data

    return Reader(one)  # an index at a time is all that it takes


def _open_webdataset(webdataset: Any, folder: Path) -> Reader:
    shards = sorted(str(path) for path in folder.glob("*.tar"))

    def walk() -> Iterator[bytes]:
        samples = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False).shuffle(BUFFER)
        for sample in samples:
            yield sample["jpg"]

    return Reader(walk=walk)  # there is no access by number
