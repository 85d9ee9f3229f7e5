"""The readers of `dietcl data prepare`, and which of them fits some data."""

import hashlib
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from dietcl.errors import UserError
from dietcl.files import MANIFEST, default_cache
from dietcl.streams.filesystem import FileRoot
from dietcl.streams.manifest_builder import Progress
from dietcl.streams.sources import SOURCES
from dietcl.streams.sources.builtin.source_cache import prepare_pack
from dietcl.streams.sources.datasets.cglm import Cglm
from dietcl.streams.sources.datasets.cifar import Cifar
from dietcl.streams.sources.datasets.clear import Clear
from dietcl.streams.sources.datasets.cloc import Cloc
from dietcl.streams.sources.datasets.imagenet import ImageNet2k, ImageNet10k
from dietcl.streams.sources.datasets.tiny_imagenet import TinyImageNet
from dietcl.streams.sources.reader import Prepared, Reader, locate, prepare
from dietcl.streams.sources.readers.folder import Folder
from dietcl.streams.sources.readers.huggingface import HuggingFace
from dietcl.streams.sources.readers.idx import Idx
from dietcl.streams.sources.readers.npz import Arrays
from dietcl.streams.sources.readers.table import Table
from dietcl.streams.sources.readers.tar import Tar
from dietcl.streams.sources.readers.webp_zip import Strips

__all__ = ["READERS", "Prepared", "Reader", "locate", "prepare", "prepare_in_cache", "recognize", "stream_name"]

# The first that fits is chosen, so specific kinds come before general ones.
_SPECIFIC = (Cloc, Cglm, Cifar, TinyImageNet, Idx, Clear, Strips, Arrays, ImageNet2k, ImageNet10k)
_KINDS: tuple[type[Reader], ...] = (*_SPECIFIC, Tar, HuggingFace, Table, Folder)
READERS: Mapping[str, type[Reader]] = {reader.name: reader for reader in _KINDS}


def recognize(file_root: FileRoot, name: str) -> type[Reader]:
    """Return the first reader that fits the data."""
    for reader in READERS.values():
        if reader.fits(file_root, name):
            return reader
    raise UserError(f"{file_root.path(name)}: unknown kind of data; choose with --kind from {', '.join(READERS)}")


def prepare_in_cache(path: Path, reader: Reader | None = None, progress: Progress | None = None) -> Path:
    """Return the manifest of a folder or file of images, prepared in the cache folder; again if any file changed."""
    root, chosen = path.resolve(), reader
    try:
        place = locate(str(root))
        chosen = chosen or recognize(*place)()
        listing = hashlib.blake2b(digest_size=16)
        for file in sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]:
            facts = file.stat()
            listing.update(f"{file}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode(errors="surrogateescape"))
        identity = {"files": listing.hexdigest(), "reader": repr(chosen)}
        fill = partial(prepare, chosen, str(root), progress=progress)
        return prepare_pack(default_cache(), root.stem, identity, fill)
    except UserError as error:
        raise UserError(f"{error}{_in_python(str(error), chosen)}") from None


def stream_name(source: str | Path, progress: Progress | None = None) -> str:
    """Return the name of a built-in stream or the path of a manifest; a folder or table of images is prepared first."""
    name, path = str(source), Path(source)
    if name in SOURCES or path.suffix in (".parquet", ".zip") or not path.exists():
        return name
    manifest = path / MANIFEST
    return str(manifest if manifest.is_file() else prepare_in_cache(path, None, progress))


def _in_python(sentence: str, reader: Reader | None) -> str:
    """Return how the options that a sentence advises are given without the command line."""
    found = dict.fromkeys(name.replace("-", "_") for name in re.findall(r"(?<!\S)--([a-z-]+)", sentence))
    arguments = ["KIND" if reader is None or "kind" in found else repr(reader.name)]
    arguments += [f"{name}=..." for name in found if hasattr(reader, name)]
    return f" (in Python: dietcl.prepare(path, dietcl.reader({', '.join(arguments)})))" if found else ""
