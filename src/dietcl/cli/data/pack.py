"""`dietcl data pack`: resize every image of a manifest once and store it for random access."""

import json
import shlex
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from dietcl.cli.config_options import FLAT
from dietcl.cli.progress import notify, progress_bar
from dietcl.plural import plural
from dietcl.streams.options import Packing

DESCRIPTION = """Resize every image of a manifest once and store it where it is read fastest.

Examples:
  dietcl data pack photos/manifest.parquet --out photos-224
  dietcl data pack photos/manifest.parquet --side 32 --out photos-32
  dietcl data pack photos/manifest.parquet --side 256 --format webp --quality 85 --out photos-256

Small images become one array of raw squares, larger ones JPEGs in tar files that any tool can read. An
interrupted packing continues where it stopped. Images that cannot be read are left out and listed in quarantine.csv."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to pack, where to, and how."""

    manifest: Annotated[Path, tyro.conf.Positional]
    """The manifest (.parquet)."""
    out: Path | None = None
    """Folder of the packed images and their manifest (by default the manifest's folder with the side behind it)."""
    packing: Annotated[Packing, FLAT] = field(default_factory=Packing)
    fresh: bool = False
    """Start over if the folder holds an unfinished packing."""
    json: bool = False
    """Print the result as JSON."""


def main(arguments: list[str]) -> int:
    """Pack with a progress bar, and print the result."""
    options = tyro.cli(Options, args=arguments, prog="dietcl data pack", description=DESCRIPTION)
    from dietcl.streams.packer import pack

    folder = options.manifest.absolute().parent
    out = options.out or folder.with_name(f"{folder.name}-{options.packing.side}")
    if options.fresh and (out / ".packing").is_dir():
        shutil.rmtree(out / ".packing")
        for path in out.glob("images*"):
            if path.is_file():
                path.unlink()
    if (out / ".packing").is_dir():
        notify(f"{out}: continuing an earlier packing")
    try:
        with progress_bar("packing", "images") as update:
            packed = pack(options.manifest, out, options.packing, update)
    except KeyboardInterrupt:
        notify(f"stopped; the same command continues in {out}")
        raise SystemExit(130) from None
    if options.json:
        print(json.dumps({**asdict(packed), "manifest": str(packed.manifest)}))
        return 0
    print(f"{plural(packed.kept, 'image')} in {packed.bytes / 2**20:,.0f} MB: {packed.manifest}")
    if packed.bad:
        print(f"{plural(packed.bad, 'unreadable image')} left out: {out / 'quarantine.csv'}")
    print(f"next: dietcl train --stream {shlex.quote(str(packed.manifest))}")
    return 0
