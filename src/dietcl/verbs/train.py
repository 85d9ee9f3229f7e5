"""`dietcl train`: learn a stream with a method under a budget."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dietcl.config import Evaluation, Preset, RunConfig, Training, preset, stream_title
from dietcl.methods import method_config
from dietcl.models.presets import ModelConfig
from dietcl.streams.augmentation import Augmentation
from dietcl.streams.recipes import Recipe
from dietcl.verbs.options import Choices, default_recipe, gather, open_source, parse, pick

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
    json: bool = False
    """Print the result as JSON."""


def main(arguments: list[str]) -> int:
    """Parse the options, carry out the run and show its result."""
    config, where = parse_run(arguments)
    from dietcl.verbs.runs import carry_out, show

    folder = where.out or Path("runs") / f"{stream_title(config.stream)}-{config.method}-{config.hash()}"
    carry_out([(config, folder)], device=where.device, threads=where.threads, fresh=where.fresh)
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
    source = open_source(choices.stream)
    options = parse(_options(choices, sizes, source), rest, "dietcl train", DESCRIPTION)
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    where = values.pop("where")
    weights = values.pop("weights")
    if weights == "auto":
        weights = "shipped" if values["model"].encoder == "micro" else values["model"].encoder
    config = RunConfig(
        method=choices.method.partition(":")[0],
        stream=choices.stream,
        source=values.pop("source", None),
        weights=None if weights == "random" else weights,
        **values,
    )
    return config, where


def _options(choices: Choices, sizes: Preset, source: Any) -> Any:
    """Build the dataclass of the options that these choices have, filled with their defaults."""
    flat = tyro.conf.arg(name="")
    augmentation = sizes.augmentation
    if source is not None and not source.mirror:
        augmentation = dataclasses.replace(augmentation, flip=False)
    own = sizes.methods.get(choices.method.partition(":")[0], {})
    config = dataclasses.replace(method_config(choices.method), **own)
    fields: list[tuple[str, Any, Any]] = [
        (
            "budget",
            Annotated[str, tyro.conf.arg(help="Per time step: 500 (updates), 2e15flops or 2h.")],
            sizes.budget,
        ),
        (
            "accounting",
            Annotated[
                Literal["images", "flops"],
                tyro.conf.arg(help="Price of an image with gradient: 1, or its FLOPs over those of a full pass."),
            ],
            "images",
        ),
        (
            "first_time_steps",
            Annotated[int | None, tyro.conf.arg(help="Learn the first so many time steps only (all by default).")],
            None,
        ),
        ("seed", Annotated[int, tyro.conf.arg(help="Seed of the stream, the draws and the weights.")], 0),
        (
            "weights",
            Annotated[str, tyro.conf.arg(help="auto, random, shipped, a checkpoint file, or a timm name to download.")],
            "auto",
        ),
        ("method_config", Annotated[type(config), flat], config),
        ("recipe", Annotated[Recipe, flat], default_recipe(source)),
        ("training", Annotated[Training, flat], sizes.training),
        ("augmentation", Annotated[Augmentation, flat], augmentation),
        ("model", Annotated[ModelConfig, flat], sizes.model),
        ("evaluation", Annotated[Evaluation, flat], Evaluation()),
        ("where", Annotated[Where, flat], Where()),
    ]
    if source is not None:
        fields.insert(4, ("source", type(source), source))
    return gather(*fields)
