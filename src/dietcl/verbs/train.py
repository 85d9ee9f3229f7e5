"""`dietcl train`: learn a stream with a method under a budget."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dietcl.config import RunConfig, preset, stream_title
from dietcl.errors import UserError
from dietcl.streams.recipes import BAD_SHARE
from dietcl.verbs.options import gather, parse, pick
from dietcl.verbs.settings import FLAT, method_defaults, run_config, shared_fields

DESCRIPTION = """Learn a stream with a method under a budget.

Examples:
  dietcl train --stream glyphs --method dietcl --budget 40
  dietcl train --stream glyphs --method er --sampling uniform --seed 3
  dietcl train --stream photos/manifest.parquet --recipe time --label-rate 0.02 --budget 2h
  dietcl train --method dietcl:release --preset base --encoder vit_base_patch16_224.mae --budget 500

Three options decide which further ones there are; name them and ask for --help again:
  --stream   a built-in stream (dietcl streams lists them), a manifest (.parquet) or a pack (.zip); default glyphs
  --method   METHOD or METHOD:VARIANT (dietcl methods lists them); default dietcl
  --preset   micro, tiny, small, base or large; default micro"""


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where and how a run is carried out; none of it changes the result."""

    out: Path | None = None
    """Run folder (runs/STREAM-METHOD-HASH by default); an unfinished run in it is continued."""
    fresh: bool = False
    """Start over if the folder holds a run."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    threads: int | None = None
    """CPU threads (all cores by default)."""
    bad_images: float = BAD_SHARE
    """Share of the images that may turn out unreadable before the run stops; others stand in for them."""
    json: bool = False
    """Print the result as JSON."""

    def __post_init__(self) -> None:
        if not 0 <= self.bad_images <= 1:
            raise UserError(f"--bad-images {self.bad_images}: give a share between 0 and 1")


def main(arguments: list[str]) -> int:
    """Parse the options, carry out the run and show its result."""
    config, where = parse_run(arguments)
    from dietcl.verbs.runs import carry_out, show

    folder = where.out or Path("runs") / f"{stream_title(config.stream)}-{config.method}-{config.hash()}"
    carry_out(
        [(config, folder)],
        device=where.device,
        threads=where.threads,
        fresh=where.fresh,
        bad_images=where.bad_images,
    )
    if where.json:
        from dietcl.report.runs import read_run
        from dietcl.report.tables import comparison_rows

        print(json.dumps({"run": str(folder), **comparison_rows([read_run(folder)])[0]}))
    else:
        show([folder])
    return 0


def parse_run(arguments: list[str]) -> tuple[RunConfig, Where]:
    """Turn the command line into a configuration: first the choices, then the options that they open up."""
    choices, rest = pick(arguments, stream="glyphs", method="dietcl", preset="micro")
    sizes = preset(choices.preset)
    own = method_defaults(choices.method, sizes)
    shared = shared_fields(sizes, choices.stream)
    options = parse(
        gather(
            ("method_config", Annotated[type(own), FLAT], own),
            ("seed", Annotated[int, tyro.conf.arg(help="Seed of the stream, the draws and the weights.")], 0),
            *shared,
            ("where", Annotated[Where, FLAT], Where()),
        ),
        rest,
        "dietcl train",
        DESCRIPTION,
    )
    values = {name: getattr(options, name) for name, _, _ in shared}
    config = run_config(choices.stream, choices.method, options.method_config, options.seed, values)
    return config, options.where
