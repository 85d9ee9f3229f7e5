"""The readers of `dietcl data prepare`, and the preparation of a manifest with one of them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dietcl.errors import UserError
from dietcl.files import MANIFEST, default_cache
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.manifest import Facts
from dietcl.streams.manifest_builder import ManifestBuilder, Progress, Verify
from dietcl.streams.sources.builtin.source_cache import prepare_pack
from dietcl.streams.sources.datasets.cglm import Cglm
from dietcl.streams.sources.datasets.cifar import Cifar
from dietcl.streams.sources.datasets.clear import Clear
from dietcl.streams.sources.datasets.cloc import Cloc
from dietcl.streams.sources.datasets.imagenet import ImageNet2k, ImageNet10k
from dietcl.streams.sources.datasets.tiny_imagenet import TinyImageNet
from dietcl.streams.sources.reader import Reader
from dietcl.streams.sources.readers.folder import Folder
from dietcl.streams.sources.readers.huggingface import HuggingFace
from dietcl.streams.sources.readers.idx import Idx
from dietcl.streams.sources.readers.npz import Arrays
from dietcl.streams.sources.readers.table import Table
from dietcl.streams.sources.readers.tar import Tar
from dietcl.streams.sources.readers.webp_zip import Strips

# The first that fits is chosen, so specific kinds come before general ones.
_SPECIFIC = (Cloc, Cglm, Cifar, TinyImageNet, Idx, Clear, Strips, Arrays, ImageNet2k, ImageNet10k)
_KINDS: tuple[type[Reader], ...] = (*_SPECIFIC, Tar, HuggingFace, Table, Folder)
READERS: Mapping[str, type[Reader]] = {reader.name: reader for reader in _KINDS}


@dataclass(frozen=True)
class Prepared:
    """The result of a preparation."""

    manifest: Path
    kept: int
    problems: Mapping[str, int]  # by kind


def locate(path: str) -> tuple[FileRoot, str]:
    """Return the root of some data, and the name of its file there (empty for a folder)."""
    file_root = FileRoot.of(path)
    if file_root.is_folder():
        return file_root, ""
    folder, _, name = file_root.root.rpartition("/")
    if not FileRoot(folder or "/").has(name):
        raise UserError(f"{path}: no such file or folder; check the path")
    return FileRoot(folder or "/"), name


def recognize(file_root: FileRoot, name: str) -> type[Reader]:
    """Return the first reader that fits the data."""
    for reader in READERS.values():
        if reader.fits(file_root, name):
            return reader
    raise UserError(f"{file_root.path(name)}: unknown kind of data; choose with --kind from {', '.join(READERS)}")


def prepare(
    reader: Reader, path: str, out: Path, verify: Verify = "decode", progress: Progress = lambda done, total: None
) -> Prepared:
    """Write a manifest of the data into the folder `out`, and a quarantine table of what was left out."""
    if (out / MANIFEST).exists():
        raise UserError(f"{out}: holds a manifest already; choose another --out, or remove it first")
    file_root, name = locate(path)
    facts = Facts(
        source=reader.name,
        recipe=reader.recipe,
        time_steps=reader.time_steps,
        label_rate=reader.label_rate,
        mirror=reader.mirror,
    )
    rows = ManifestBuilder(file_root, out, facts, verify, progress)
    try:
        reader.read(name, rows)
        return Prepared(rows.close(), rows.kept, dict(rows.problems))
    except BaseException:
        rows.abandon()
        raise


def prepare_in_cache(path: Path, reader: Reader | None = None, progress: Progress = lambda done, total: None) -> Path:
    """Return the manifest of a folder or file of images, prepared in the cache folder; again if any file changed."""
    root = path.resolve()
    files = sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]
    listing = hashlib.blake2b(digest_size=16)
    for file in files:
        facts = file.stat()
        listing.update(f"{file}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode(errors="surrogateescape"))
    chosen = reader or recognize(*locate(str(root)))()

    identity = {"files": listing.hexdigest(), "reader": repr(chosen)}
    fill = partial(prepare, chosen, str(root), progress=progress)
    return prepare_pack(default_cache(), root.stem, identity, fill)
