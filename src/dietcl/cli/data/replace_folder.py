"""Sets the files of an earlier preparation aside while another one takes their place."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from dietcl.errors import UserError
from dietcl.files import IMAGES, MANIFEST
from dietcl.streams.filesystem import is_remote
from dietcl.streams.manifest import read_facts
from dietcl.streams.quarantine import QUARANTINE


@contextlib.contextmanager
def replaced(out: Path, path: str, fresh: bool) -> Iterator[None]:
    """Set the files of an earlier preparation aside, and restore them if this one fails."""
    created = [folder for folder in (out, *out.parents) if not folder.exists()]
    aside = out / ".earlier"
    if aside.exists():
        _restore(aside, out)  # a preparation was killed
    old = _earlier_files(out, path)
    if old and not fresh:
        raise UserError(f"{out}: holds a manifest already; choose another --out, or replace it with --fresh")
    try:
        for file in old:
            aside.mkdir(exist_ok=True)
            file.replace(aside / file.name)
        yield
    except BaseException:
        _restore(aside, out)
        for folder in created:
            with contextlib.suppress(OSError):  # it is not empty: it may hold the table of problems
                folder.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _restore(aside: Path, out: Path) -> None:
    """Move files back, except where there is a new one."""
    if aside.is_dir():
        for file in aside.iterdir():
            if not (out / file.name).exists():
                file.replace(out / file.name)
        shutil.rmtree(aside)


def _earlier_files(out: Path, path: str) -> list[Path]:
    """Return the files that an earlier preparation wrote to a folder, without any that the new one reads."""
    manifest = out / MANIFEST
    if not manifest.is_file():
        return []
    found = [manifest, out / QUARANTINE, manifest.with_name(f"{manifest.stem}.index")]
    is_read = not is_remote(path) and out.resolve() in (Path(path).resolve(), *Path(path).resolve().parents)
    facts = read_facts(manifest)
    if facts.source is not None and facts.root == "." and not is_read:
        found += [out / IMAGES, *(file for file in out.iterdir() if re.fullmatch(r"images-\d{5}\.tar", file.name))]
    return [file for file in found if file.exists()]
