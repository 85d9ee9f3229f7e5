"""Storage formats, decoders, resizers and encodings side by side on one core: what docs/decisions.md rests on."""

import importlib
import io
import itertools
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg
import torch
import torch.nn.functional as F
from PIL import Image

import dietcl._compat  # noqa: F401
from benchmarks.figure import Figure
from benchmarks.photos import SIZE, write_photos
from dietcl.models.presets import MEAN, STD
from dietcl.streams.augment import normalize
from dietcl.streams.decode import Pixels, decode
from dietcl.streams.index import Index, open_manifest
from dietcl.streams.manifest import Facts, Writer
from dietcl.streams.packer import encode, pack, shrink
from dietcl.streams.packing import Packing
from dietcl.streams.place import Place
from dietcl.streams.shards import ShardWriter, member_name
from dietcl.streams.sources.folder import Folder
from dietcl.streams.sources.readers import prepare
from dietcl.streams.storage import Storage, spread, squares

SIDE = 224
AT_ONCE = 64
OURS = "our shards"
RECORD_BATCH = 1024  # images of a record batch in the Arrow file
ROW_GROUP = 64  # images of a row group in the Parquet file
CHUNK = 2**24  # bytes of a litdata chunk: several of them, as a large set has
BUFFER = 1000  # images in WebDataset's shuffle buffer
INSTALL = {
    "lance": "pylance",
    "litdata": "litdata",
    "webdataset": "webdataset",
    "kornia_rs": "kornia-rs",
    "torchvision.io": "a torchvision that was built for the same torch",
}
Work = Callable[[], int]  # does something to some images and says to how many


@dataclass(frozen=True)
class Format:
    """A way to store encoded images: how it is written, and how images are read back by number."""

    write: Callable[[Path, list[bytes]], None]
    open: Callable[[Path], "Reader"]


@dataclass(frozen=True)
class Reader:
    """How images come back: one by number, many at once, or (`walk`) only in the order that the format has."""

    one: Callable[[int], bytes] | None = None
    many: Callable[[npt.NDArray[np.int64]], list[bytes]] | None = None
    walk: Callable[[], Iterator[bytes]] | None = None


@dataclass
class Race:
    """Contenders in turn, in another order every round, and the median time of each.

    Time is the processor's, of all threads: what others do on the machine meanwhile is not counted.
    """

    contenders: Mapping[str, Work]
    clock: Callable[[], float] = time.process_time
    times: dict[str, list[float]] = field(default_factory=dict)

    def run(self, rounds: int) -> "Race":
        """Do everything so many times, after one time that does not count."""
        generator = np.random.default_rng(0)
        names = list(self.contenders)
        for round_ in range(rounds + 1):
            for name in generator.permutation(names).tolist():
                started = self.clock()
                done = self.contenders[name]()
                taken = (self.clock() - started) / done
                if round_:
                    self.times.setdefault(name, []).append(taken)
        return self

    def seconds(self, name: str) -> float:
        """Return the median time of an image."""
        return statistics.median(self.times[name])

    def figures(self, title: str, reference: str, unit: str = "images/s") -> list[Figure]:
        """Return everybody's speed, its ratio to the reference's, and how far rounds of the reference lie apart."""
        found = []
        for name in self.contenders:
            seconds = self.seconds(name)
            value = 1 / seconds if unit == "images/s" else 1e3 * seconds
            found.append(Figure(f"{title}: {name}", value, unit))
            if name != reference:
                # Above 1: faster than the reference, whatever the unit.
                found.append(Figure(f"{title}: {name} over {reference}", self.seconds(reference) / seconds, "x"))
        low, _, high = statistics.quantiles(self.times[reference], n=4)
        return [*found, Figure(f"{title}: noise, upper over lower quartile of {reference}", high / low, "x")]


def run(quick: bool) -> list[Figure]:
    """Measure everything on one core, contenders in turn."""
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_cores)})
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    rounds = 5 if quick else 21
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        photos = write_photos(folder / "photos", 256 if quick else 2048)
        manifest = prepare(Folder(test_share=0), str(photos), folder / "manifest", verify="none").manifest
        originals = [path.read_bytes() for path in sorted(photos.rglob("*.jpg"))[:AT_ONCE]]
        packed = pack(manifest, folder / "pack", Packing(side=SIDE))
        contents = _contents(open_manifest(packed.manifest))
        sections: list[Callable[[], list[Figure]]] = [
            partial(_storage, folder, contents, rounds),
            partial(_decoders, contents[:AT_ONCE], originals, rounds),
            partial(_resizers, originals, rounds),
            partial(_encodings, originals, rounds),
            partial(_raw_or_jpeg, folder, manifest, rounds),
            partial(_floats, rounds),
            partial(_threads, contents[: 4 * AT_ONCE], rounds, all_cores),
        ]
        return list(itertools.chain.from_iterable(section() for section in sections))


def _optional(name: str) -> Any:
    """Import a package that the project does not depend on, or say how to get it and return None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{name}: not installed, left out (pip install {INSTALL[name]})", file=sys.stderr)
        return None


# Storage


def _contents(index: Index) -> list[bytes]:
    read = _read_ours(index)
    return [read(row) for row in range(len(index))]


def _storage(folder: Path, contents: list[bytes], rounds: int) -> list[Figure]:
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
            if webdataset := _optional("webdataset"):
                readers["WebDataset"] = _open_webdataset(webdataset, place)
        if name == "litdata":
            readers["litdata, no window"] = _open_litdata(_optional("litdata"), 1, place)
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
        OURS: Format(_write_ours, lambda folder: _reader_of_ours(open_manifest(folder / "manifest.parquet"))),
        "plain files": Format(_write_files, _open_files),
        "Arrow, mapped": Format(_write_arrow, _open_arrow),
        "Parquet": Format(_write_parquet, _open_parquet),
    }
    if lance := _optional("lance"):
        formats["Lance"] = Format(partial(_write_lance, lance), partial(_open_lance, lance))
    if litdata := _optional("litdata"):
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


def _read_ours(index: Index) -> Callable[[int], bytes]:
    place = Place.of(index.root)

    def one(row: int) -> bytes:
        offset = int(index.offset[row])
        return place.read(index.files[int(index.file[row])], offset, offset + int(index.length[row]))

    return one


def _reader_of_ours(index: Index) -> Reader:
    place = Place.of(index.root)

    def many(rows: npt.NDArray[np.int64]) -> list[bytes]:
        # As Storage does it: columns for all rows, then a read for each.
        names = [index.files[file] for file in index.file[rows]]
        starts = index.offset[rows]
        ends = starts + index.length[rows]
        return [place.read(*what) for what in zip(names, starts.tolist(), ends.tolist(), strict=True)]

    return Reader(_read_ours(index), many)


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

    def many(one: Callable[[int], bytes], rows: npt.NDArray[np.int64]) -> list[bytes]:
        return [one(row) for row in rows.tolist()]

    return {"left open": Reader(pread, partial(many, pread)), "mapped": Reader(cut, partial(many, cut))}


def _write_files(folder: Path, contents: list[bytes]) -> None:
    for number, data in enumerate(contents):
        (folder / f"{number:09d}.jpg").write_bytes(data)


def _open_files(folder: Path) -> Reader:
    root = str(folder)

    def one(number: int) -> bytes:
        with open(f"{root}/{number:09d}.jpg", "rb", buffering=0) as file:
            return file.readall()

    return Reader(one, lambda numbers: [one(number) for number in numbers.tolist()])


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

    return Reader(one, lambda numbers: [one(number) for number in numbers.tolist()])


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


# Decoders


def _decoders(packed: list[bytes], originals: list[bytes], rounds: int) -> list[Figure]:
    whole = _whole_decoders()
    wide = f"{SIZE[0]} x {SIZE[1]}"
    figures = []
    for title, files in ((f"decode a {SIDE}-px JPEG", packed), (f"decode a JPEG of {wide}", originals)):
        race = Race({name: partial(_each, one, files) for name, one in whole.items()})
        figures += race.run(rounds).figures(title, "simplejpeg")
    for side in (SIDE, 64):
        race = Race({name: partial(_each, one, originals) for name, one in _scaling_decoders(side).items()})
        figures += race.run(rounds).figures(f"decode a JPEG of {wide} for {side} px", "decode()")
    figures += [*_scales(originals, rounds), *_squares(originals, rounds)]
    checked = {**whole, **{f"{name} for 64 px": one for name, one in _scaling_decoders(64).items()}}
    generator = np.random.default_rng(4)
    broken = {
        "truncated": [data[: len(data) // 2] for data in packed],
        "damaged": [_damage(data, generator) for data in packed],
    }
    for (how, files), (name, one) in itertools.product(broken.items(), checked.items()):
        # Ours must report what is cut off; of all others it is told whether they do.
        bar = len(files) if how == "truncated" and name.startswith(("simplejpeg", "decode()")) else None
        with _silence():
            reported = sum(_raises(one, data) for data in files)
        figures.append(Figure(f"{how} JPEGs reported, of {len(files)}: {name}", reported, "files", at_least=bar))
    return figures


def _scales(originals: list[bytes], rounds: int) -> list[Figure]:
    """Decode at every eighth of the size that a JPEG's blocks offer."""

    def at(eighths: int, data: bytes) -> Pixels:
        least_width, least_height = (side * eighths // 8 for side in SIZE)
        pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", min_width=least_width, min_height=least_height)
        return pixels

    for eighths in range(1, 8):
        height = at(eighths, originals[0]).shape[0]
        assert abs(height - SIZE[1] * eighths / 8) < 1, f"{eighths}/8: {height} rows"
    works = {f"{eighths}/8": partial(_each, partial(at, eighths), originals) for eighths in range(8, 0, -1)}
    return Race(works).run(rounds).figures(f"simplejpeg reduces {SIZE[0]} x {SIZE[1]} while decoding", "8/8")


def _squares(originals: list[bytes], rounds: int) -> list[Figure]:
    """Decode and resize to a square, because a decoder that reduces leaves less to resize."""
    decoders: dict[str, Callable[[bytes], Pixels]] = {
        "decode()": lambda data: decode(data, SIDE),
        "simplejpeg at full size": lambda data: simplejpeg.decode_jpeg(data, "RGB"),
        "OpenCV at full size": _opencv,
    }

    def square(one: Callable[[bytes], Pixels], data: bytes) -> torch.Tensor:
        return squares([one(data)], SIDE)

    race = Race({name: partial(_each, partial(square, one), originals) for name, one in decoders.items()})
    return race.run(rounds).figures(f"a square of {SIDE} px from a JPEG of {SIZE[0]} x {SIZE[1]}", "decode()")


def _opencv(data: bytes) -> Pixels:
    pixels: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)  # None where it fails
    found: Pixels = pixels
    return found


def _damage(data: bytes, generator: np.random.Generator) -> bytes:
    """Overwrite 40 bytes in the middle, as a bad disk or transfer does."""
    middle = len(data) // 2
    return data[:middle] + generator.bytes(40) + data[middle + 40 :]


@contextmanager
def _silence() -> Iterator[None]:
    """Hide what libraries write past Python to the standard error."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _each(one: Callable[[bytes], object], files: list[bytes]) -> int:
    for data in files:
        one(data)
    return len(files)


def _raises(one: Callable[[bytes], object], data: bytes) -> bool:
    """Tell whether a decoder reports broken data, by an exception or by giving nothing."""
    try:
        return one(data) is None
    except Exception:
        return True


def _whole_decoders() -> dict[str, Callable[[bytes], object]]:
    fast = {"fastdct": True, "fastupsample": True}
    found: dict[str, Callable[[bytes], object]] = {
        "simplejpeg": lambda data: simplejpeg.decode_jpeg(data, "RGB"),
        "simplejpeg, fast DCT and upsampling": lambda data: simplejpeg.decode_jpeg(data, "RGB", **fast),
        "Pillow": lambda data: np.array(Image.open(io.BytesIO(data)).convert("RGB")),
        "OpenCV": _opencv,
    }
    if kornia := _optional("kornia_rs"):
        found["kornia-rs, turbo"] = lambda data: kornia.io.decode_image_jpegturbo(data, "rgb")
        found["kornia-rs"] = kornia.io.decode_image_jpeg
    if (torchvision := _torchvision()) is not None:
        found["torchvision.io"] = lambda data: torchvision.decode_jpeg(_tensor(data))
    return found


def _torchvision() -> Any:
    """Return torchvision.io if its compiled half can be loaded, which a CPU build of torch may not do."""
    module = _optional("torchvision.io")
    if module is None:
        return None
    try:
        module.decode_jpeg(_tensor(simplejpeg.encode_jpeg(np.zeros((8, 8, 3), np.uint8))))
    except Exception as error:
        print(f"torchvision.io: cannot be used, left out ({str(error).partition('.')[0]})", file=sys.stderr)
        return None
    return module


def _tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def _scaling_decoders(side: int) -> dict[str, Callable[[bytes], object]]:
    """Return decoders that make an image smaller while they decode it, to no less than the side."""

    def pillow(data: bytes) -> Pixels:
        image = Image.open(io.BytesIO(data))
        image.draft("RGB", (side, side))
        return np.array(image.convert("RGB"))

    def opencv(data: bytes) -> object:
        factor = min(SIZE) // side
        flags = {8: cv2.IMREAD_REDUCED_COLOR_8, 4: cv2.IMREAD_REDUCED_COLOR_4, 2: cv2.IMREAD_REDUCED_COLOR_2}
        flag = next((flag for scale, flag in flags.items() if scale <= factor), None)
        if flag is None:
            return _opencv(data)
        reduced: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
        return None if reduced is None else cv2.cvtColor(reduced, cv2.COLOR_BGR2RGB)

    return {"decode()": lambda data: decode(data, side), "Pillow with draft": pillow, "OpenCV reduced": opencv}


# Resizers


def _resizers(originals: list[bytes], rounds: int) -> list[Figure]:
    pictures: list[Pixels] = [simplejpeg.decode_jpeg(data, "RGB") for data in originals]
    cases = {
        f"resize 150 x 170 to {SIDE}": ([_view(picture, 150, 170) for picture in pictures], SIDE),
        f"resize 256 x 256 to {SIDE}": ([_view(picture, 256, 256) for picture in pictures], SIDE),
        "resize 375 x 375 to 64": ([_view(picture, 375, 375) for picture in pictures], 64),
    }
    figures = []
    for title, (parts, side) in cases.items():
        makers = _resizing(side)
        works = {name: partial(_resize_all, one, parts) for name, one in makers.items()}
        batch = torch.stack([torch.from_numpy(part.copy()).permute(2, 0, 1) for part in parts]).float()
        works["torch grid_sample, float batch"] = partial(_sample_grid, batch, side)
        figures += Race(works).run(rounds).figures(title, "OpenCV linear", "ms/image")
        reference = np.stack([makers["Pillow bilinear"](part) for part in parts]).astype(np.float32)
        for name, one in makers.items():
            if name != "Pillow bilinear":
                apart = np.abs(np.stack([one(part) for part in parts]) - reference).mean()
                figures.append(Figure(f"{title}: {name} apart from Pillow bilinear", float(apart), "gray levels"))
    return figures


def _view(picture: Pixels, height: int, width: int) -> Pixels:
    """Cut out the middle without a copy, as crops are."""
    top, left = (picture.shape[0] - height) // 2, (picture.shape[1] - width) // 2
    return picture[top : top + height, left : left + width]


def _resizing(side: int) -> dict[str, Callable[[Pixels], npt.NDArray[Any]]]:
    size = (side, side)

    def smooth(part: Pixels) -> Pixels:
        images = torch.from_numpy(part).permute(2, 0, 1)[None]
        done: Pixels = F.interpolate(images, size, mode="bilinear", antialias=True)[0].permute(1, 2, 0).numpy()
        return done

    def pillow(part: Pixels) -> Pixels:
        return np.asarray(Image.fromarray(part).resize(size, Image.Resampling.BILINEAR))

    return {
        "OpenCV linear": lambda part: cv2.resize(part, size, interpolation=cv2.INTER_LINEAR),
        "OpenCV area": lambda part: cv2.resize(part, size, interpolation=cv2.INTER_AREA),
        "Pillow bilinear": pillow,
        "torch uint8 antialiased": smooth,
    }


def _resize_all(one: Callable[[Pixels], object], parts: list[Pixels]) -> int:
    for part in parts:
        one(part)
    return len(parts)


def _sample_grid(images: torch.Tensor, side: int) -> int:
    theta = torch.eye(2, 3).expand(len(images), 2, 3)
    grid = F.affine_grid(theta, [len(images), 3, side, side], align_corners=False)
    F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return len(images)


# Encodings


def _encodings(originals: list[bytes], rounds: int) -> list[Figure]:
    """Encode the same 224-px pictures in several ways: bytes, distortion, and the time to encode and decode."""
    pictures = [np.ascontiguousarray(shrink(simplejpeg.decode_jpeg(data, "RGB"), SIDE)) for data in originals]
    ways: dict[str, Callable[[Pixels], bytes]] = {
        "JPEG 90": lambda picture: encode(picture, Packing(format="jpeg", quality=90)),
        "JPEG 80": lambda picture: encode(picture, Packing(format="jpeg", quality=80)),
        "JPEG 95": lambda picture: encode(picture, Packing(format="jpeg", quality=95)),
        "JPEG 90 in 4:4:4": lambda picture: simplejpeg.encode_jpeg(picture, 90, "RGB", "444"),
        "WebP 90": lambda picture: encode(picture, Packing(format="webp", quality=90)),
    }
    figures, decoders, encoders = [], {}, {}
    for name, way in ways.items():
        files = [way(picture) for picture in pictures]
        size = statistics.mean(map(len, files))
        ratio = statistics.median(
            _decibels(decode(data, SIDE), picture) for data, picture in zip(files, pictures, strict=True)
        )
        figures += [
            Figure(f"encoding at {SIDE} px, an image: {name}", size / 1e3, "kB"),
            Figure(f"encoding at {SIDE} px, signal to noise: {name}", ratio, "dB"),
        ]
        decoders[name] = partial(_each, partial(decode, side=SIDE), files)
        encoders[name] = partial(_encode_all, way, pictures)
    figures += Race(decoders).run(rounds).figures(f"decode() at {SIDE} px", "JPEG 90")
    return [*figures, *Race(encoders).run(max(5, rounds // 3)).figures(f"encode at {SIDE} px", "JPEG 90")]


def _decibels(one: Pixels, other: Pixels) -> float:
    error = float(np.mean((one.astype(np.float32) - other.astype(np.float32)) ** 2))
    return float(10 * np.log10(255**2 / error))


def _encode_all(way: Callable[[Pixels], bytes], pictures: list[Pixels]) -> int:
    for picture in pictures:
        way(picture)
    return len(pictures)


def _raw_or_jpeg(folder: Path, manifest: Path, rounds: int) -> list[Figure]:
    """Pack at several sides both ways, and read squares of it at random through Storage."""
    generator = np.random.default_rng(3)
    figures = []
    for side in (32, 64, 96, 128, SIDE):
        works: dict[str, Work] = {}
        for kind in ("raw", "jpeg"):
            packing = Packing(side=side, format="raw" if kind == "raw" else "jpeg")
            packed = pack(manifest, folder / f"{kind}-{side}", packing)
            index = open_manifest(packed.manifest)
            works[kind] = partial(_read_squares, Storage(index, side), generator, len(index))
            figures.append(Figure(f"packed at {side} px, an image: {kind}", packed.bytes / packed.kept / 1e3, "kB"))
        race = Race(works).run(rounds)
        figures += race.figures(f"packed at {side} px, {AT_ONCE} squares at random", "jpeg")
    return figures


def _read_squares(storage: Storage, generator: np.random.Generator, count: int) -> int:
    for _ in range(4):
        storage.read(generator.integers(count, size=AT_ONCE))
    return 4 * AT_ONCE


# Floats and threads


def _floats(rounds: int) -> list[Figure]:
    """Normalize a batch into memory that numpy asked for (huge pages, where they may be had) or torch."""
    last = torch.randint(0, 256, (AT_ONCE, SIDE, SIDE, 3), dtype=torch.uint8).permute(0, 3, 1, 2)

    def ours(images: torch.Tensor) -> int:
        return len(normalize(images))

    def theirs(images: torch.Tensor) -> int:
        return len(images.float().div_(255).sub_(MEAN).div_(STD))

    figures = []
    for layout, images in (("channels last", last), ("channels first", last.contiguous())):
        race = Race({"numpy's memory": partial(ours, images), "torch's memory": partial(theirs, images)})
        title = f"normalize {AT_ONCE} at {SIDE} px, {layout}"
        figures += race.run(2 * rounds).figures(title, "numpy's memory", "ms/image")
    return figures


def _blank(number: int) -> torch.Tensor:
    return torch.full((AT_ONCE, 3, SIDE, SIDE), number % 256, dtype=torch.uint8)


_files: list[bytes] = []  # what a worker process decodes


def _remember(files: list[bytes]) -> None:
    _files.extend(files)


def _decode_some(share: tuple[int, int]) -> int:
    some = _files[slice(*share)]
    return _each(partial(decode, side=SIDE), some)


def _threads(files: list[bytes], rounds: int, all_cores: set[int]) -> list[Figure]:
    """Hand batches over from a thread and from a worker process, and decode in one thread and in two."""
    numbers = itertools.count()
    # One batch at a time on the one core: a worker that runs ahead would take time from the thread's turn.
    with ThreadPoolExecutor(1) as thread, torch.multiprocessing.get_context("spawn").Pool(1) as process:

        def from_thread() -> int:
            return sum(len(thread.submit(_blank, next(numbers)).result()) for _ in range(8))

        def from_process() -> int:
            return sum(len(process.apply(_blank, (next(numbers),))) for _ in range(8))

        def clock() -> float:
            own: float = process.apply(time.process_time)
            return own + time.process_time()

        race = Race({"a thread": from_thread, "a worker process": from_process}, clock).run(rounds)
        figures = race.figures(f"make {AT_ONCE} blank squares of {SIDE} px and hand them over", "a thread", "ms/image")
    if len(all_cores) < 2:
        return figures
    os.sched_setaffinity(0, all_cores)  # of this thread and those that it starts from here on
    spawn = torch.multiprocessing.get_context("spawn")
    with (
        ThreadPoolExecutor(1) as single,
        ThreadPoolExecutor(2) as double,
        spawn.Pool(2, initializer=_remember, initargs=(files,)) as processes,
    ):

        def decode_in(pool: ThreadPoolExecutor) -> int:
            return len(spread(pool, lambda i: decode(files[i], SIDE), len(files)))

        def decode_by(count: int) -> int:
            each = len(files) // count
            return sum(processes.map(_decode_some, [(i * each, (i + 1) * each) for i in range(count)], chunksize=1))

        works = {
            "1 thread": partial(decode_in, single),
            "2 threads": partial(decode_in, double),
            "1 worker process": partial(decode_by, 1),
            "2 worker processes": partial(decode_by, 2),
        }
        race = Race(works, time.perf_counter).run(rounds)
        figures += race.figures("decode on two cores, by the clock on the wall", "1 thread")
    figures += _stalls()
    os.sched_setaffinity(0, {min(all_cores)})
    return figures


def _stalls() -> list[Figure]:
    """Tell how long one big call keeps another thread from running: all of its time if it holds Python's lock."""
    picture = np.random.default_rng(5).integers(0, 256, (500, 500, 3), np.uint8)
    large = cv2.resize(picture, (6000, 6000))
    data = simplejpeg.encode_jpeg(large, 90, "RGB", "420")
    images = torch.from_numpy(large).permute(2, 0, 1)[None]
    works: dict[str, Callable[[], object]] = {
        "simplejpeg decodes": lambda: simplejpeg.decode_jpeg(data, "RGB"),
        "Pillow decodes": lambda: np.array(Image.open(io.BytesIO(data))),
        "OpenCV resizes": lambda: cv2.resize(large, (9000, 9000)),
        "torch resizes": lambda: F.interpolate(images, (3000, 3000), mode="bilinear", antialias=True),
    }
    figures = []
    for name, work in works.items():
        shares = []
        for _ in range(5):
            with ThreadPoolExecutor(1) as thread:
                begun = last = time.perf_counter()
                longest, future = 0.0, thread.submit(work)
                while not future.done():
                    now = time.perf_counter()
                    longest, last = max(longest, now - last), now
                shares.append(max(longest, time.perf_counter() - last) / (time.perf_counter() - begun))
        share = 100 * statistics.median(shares)
        figures.append(Figure(f"longest halt of another thread while {name}", share, "% of the call"))
    return figures
