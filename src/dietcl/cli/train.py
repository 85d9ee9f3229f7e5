"""`dietcl train`: learn a stream with a method under a budget."""

import json
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dietcl.cli.config_options import gather, parse, pick
from dietcl.cli.settings import FLAT, method_defaults, run_config, shared_fields
from dietcl.config import RunConfig, preset, stream_title
from dietcl.errors import UserError
from dietcl.process_pool import places
from dietcl.signals import Saving, seconds
from dietcl.streams.recipes import BAD_SHARE

DESCRIPTION = """Learn a stream with a method under a budget.

Examples:
  dietcl train --stream glyphs --method dietcl --budget 40
  dietcl train --stream glyphs --method er --sampling uniform --seed 3
  dietcl train --stream photos/manifest.parquet --recipe time --label-rate 0.02 --budget 2h
  dietcl train --method dietcl:release --preset base --encoder vit_base_patch16_224.mae --budget 500
  dietcl train --stream photos/manifest.parquet --stop-after 2h --out runs/photos   (the same again next night)
  torchrun --nproc-per-node 4 -m dietcl train --preset base --budget 500   (4 processes, the same result)

Three options decide which further ones there are; name them and ask for --help again:
  --stream   a built-in stream (dietcl streams lists them), a manifest (.parquet) or a pack (.zip); default glyphs
  --method   METHOD or METHOD:VARIANT (dietcl methods lists them); default dietcl
  --preset   micro, nano, tiny, small, base or large; default micro"""


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where and how a run is carried out; device, precision and threads change the rounding, nothing else does."""

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
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """What the network computes in; auto: bfloat16 on GPUs that have it, float32 elsewhere."""
    checkpoint_every: int = Saving.every
    """Updates between checkpoints; the end of every time step is one, too."""
    checkpoint_minutes: float = Saving.minutes
    """Minutes between checkpoints, if that comes first."""
    keep_checkpoints: int = Saving.keep
    """How many checkpoints to keep; a damaged one leaves those before it."""
    stop_after: str | None = None
    """Save and stop after so much time, such as 2h, with exit code 75 (0 if torchrun or srun started several
    processes); the same command goes on."""
    json: bool = False
    """Print the result as JSON."""

    def __post_init__(self) -> None:
        for name in ("checkpoint_every", "keep_checkpoints"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: give at least 1")
        if not self.checkpoint_minutes > 0:
            raise UserError(f"--checkpoint-minutes {self.checkpoint_minutes}: give a number above 0")
        self.saving()
        if not 0 <= self.bad_images <= 1:
            raise UserError(f"--bad-images {self.bad_images}: give a share between 0 and 1")

    def saving(self) -> Saving:
        """Return when to save and stop."""
        limit = None if self.stop_after is None else seconds(self.stop_after)
        return Saving(
            every=self.checkpoint_every, minutes=self.checkpoint_minutes, keep=self.keep_checkpoints, stop_after=limit
        )


def main(arguments: list[str]) -> int:
    """Parse the options, carry out the run and show its result."""
    config, where = _parse_quietly(arguments) if places()[0] else parse_run(arguments)
    from dietcl.cli.run_progress import carry_out, show
    from dietcl.engine.distributed import join, leave

    world = join(where.device)
    folder = where.out or Path("runs") / f"{stream_title(config.stream)}-{config.method}-{config.hash()}"
    carry_out(
        [(config, folder)],
        device=where.device,
        threads=where.threads,
        fresh=where.fresh and not world.is_restarted,
        bad_images=where.bad_images,
        saving=where.saving(),
        precision=where.precision,
        world=world,
    )
    leave(world)
    if not world.is_first:
        return 0
    if where.json:
        from dietcl.report.runs import read_run
        from dietcl.report.tables import comparison_rows

        print(json.dumps({"run": str(folder), **comparison_rows([read_run(folder)])[0]}))
    else:
        show([folder])
    return 0


def _parse_quietly(arguments: list[str]) -> tuple[RunConfig, Where]:
    """Leave it to the first process to complain of the options, or to explain them: all have the same ones."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        try:
            return parse_run(arguments)
        except UserError:
            raise SystemExit(2) from None


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
