"""`dietcl train`: learn a stream with a method under a budget."""

import json
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

from dietcl.cli.config_options import flat, gather, option, parse, pick, pick_stream, shared_fields, with_values
from dietcl.config import RunConfig
from dietcl.config_builder import default_config, default_folder
from dietcl.errors import UserError
from dietcl.execution import Execution
from dietcl.launch import ranks
from dietcl.methods import DEFAULT_METHOD

DESCRIPTION = f"""Learn a stream with a method under a budget.

Examples:
  dietcl train --stream glyphs --method dietcl --budget 40
  dietcl train --stream glyphs --method er --sampling uniform --seed 3
  dietcl train --stream photos   (a folder photos/CLASS/image.jpg; a classifier in minutes)
  dietcl train --stream photos/manifest.parquet --recipe time --label-rate 0.02 --budget 2h
  dietcl train --stream photos --method er:uniform --encoder vit_small_patch16_dinov3 --train lora --budget 2h
  dietcl train --method dietcl:release --encoder vit_base_patch16_224.mae --budget 500
  dietcl train --stream photos/manifest.parquet --stop-after 2h --out runs/photos   (the same again next night)
  torchrun --nproc-per-node 4 -m dietcl train --preset base --budget 500   (4 processes, the same result)

Four options decide which further ones there are; name them and ask for --help again:
  --stream   a built-in stream (dietcl streams lists them), a folder or table of images, a manifest (.parquet) or a
             pack (.zip); default glyphs
  --method   METHOD or METHOD:VARIANT (dietcl methods lists them); default {DEFAULT_METHOD}
  --preset   micro, nano, frozen, lite, tiny, small, base or large; default the one of the encoder's size, or else, on
             images of your own, lite as it is (frozen) for larder and methods that never train an encoder; else micro
  --encoder  micro, nano, lite or the timm name of an image model (dietcl encoders lists them); image size, crop,
             interpolation and pooling default to those that it was published with"""


@dataclass(frozen=True, kw_only=True)
class Output:
    """The run folder and how its result is shown."""

    out: Path | None = None
    """Run folder (runs/STREAM-METHOD-HASH by default); an unfinished run in it is continued."""
    json: bool = False
    """Print the result as JSON."""


def main(arguments: list[str]) -> int:
    """Parse the options, execute the run and show its result."""
    config, execution, output = _parse_quietly(arguments) if ranks()[0] else parse_run(arguments)
    from dietcl.cli.run_progress import execute_with_progress, show
    from dietcl.engine.distributed import join, leave

    world = join(execution.device)
    folder = output.out or default_folder(config)
    # A run that torchrun or SLURM starts again must go on, not start over.
    execution = replace(execution, fresh=execution.fresh and not world.is_restarted)
    execute_with_progress(config, folder, execution, world)
    leave(world)
    if not world.is_first:
        return 0
    if output.json:
        from dietcl.report.runs import RunRecord
        from dietcl.report.tables import comparison_rows

        print(json.dumps({"run": str(folder), **comparison_rows([RunRecord.read(folder)])[0]}))
    else:
        show(folder)
    return 0


def _parse_quietly(arguments: list[str]) -> tuple[RunConfig, Execution, Output]:
    """Parse without printing help or mistakes: all processes have the same options, and the first one prints."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        try:
            return parse_run(arguments)
        except UserError:
            raise SystemExit(2) from None


def parse_run(arguments: list[str]) -> tuple[RunConfig, Execution, Output]:
    """Turn the command line into a configuration: first the choices, then the options that they open up."""
    choices, rest = pick(arguments, stream="glyphs", method=DEFAULT_METHOD, preset="", encoder="")
    config = default_config(pick_stream(choices.stream), choices.method, choices.preset, choices.encoder)
    fields = (
        flat("method_config", config.method_config),
        option("seed", int, 0, "Seed of the stream, the draws and the weights."),
        *shared_fields(config),
    )
    further = (flat("execution", Execution()), flat("output", Output()))
    parsed = parse(gather(*fields, *further), rest, "dietcl train", DESCRIPTION)
    values = {name: getattr(parsed, name) for name, _, _ in fields}
    return with_values(config, **values), parsed.execution, parsed.output
