"""`dietcl pretrain`: masked pre-training of encoder and decoder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from dietcl.config import Pretraining, preset
from dietcl.models.presets import ModelConfig
from dietcl.verbs.options import gather, open_source, parse, pick

DESCRIPTION = """Pre-train encoder and decoder by reconstruction of masked patches on any image set.

Examples:
  dietcl pretrain --stream glyphs-upstream --out runs/upstream
  dietcl pretrain --stream photos/manifest.parquet --preset tiny --updates 20000 --out runs/photos

A run that was stopped goes on when the same command is given again."""


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where the result goes and what computes it."""

    out: Path = Path("runs/pretrain")
    """Folder for weights.safetensors, loss.png and reconstructions.png."""
    half: bool = False
    """Store the weights in 16 bits."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    threads: int | None = None
    """CPU threads (all cores by default)."""


def main(arguments: list[str]) -> int:
    """Parse the options, pre-train, and say where the weights and pictures lie."""
    choices, rest = pick(arguments, stream="glyphs-upstream")
    source = open_source(choices.stream)
    sizes = preset(choices.preset)
    flat = tyro.conf.arg(name="")
    mirror = source is None or source.mirror
    fields: list[tuple[str, Any, Any]] = [
        ("pretraining", Annotated[Pretraining, flat], Pretraining(flip=mirror)),
        ("model", Annotated[ModelConfig, flat], sizes.model),
        ("where", Annotated[Where, flat], Where()),
    ]
    if source is not None:
        fields.append(("source", type(source), source))
    options: Any = parse(gather(*fields), rest, "dietcl pretrain", DESCRIPTION)
    manifest = Path(choices.stream) if source is None else options.source.prepare()
    command = " ".join(["dietcl", "pretrain", *arguments])
    from dietcl.verbs.runs import carry_out_pretraining

    carry_out_pretraining(options.model, options.pretraining, manifest, options.where, command)
    return 0
