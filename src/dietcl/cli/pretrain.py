"""`dietcl pretrain`: masked pre-training of encoder and decoder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dietcl.cli.config_options import gather, parse, pick
from dietcl.config import Pretraining
from dietcl.config_builder import fitting_preset, manifest_facts, open_source
from dietcl.errors import Stopped
from dietcl.files import default_cache, disk_errors
from dietcl.models.presets import ModelConfig
from dietcl.signals import STOPPED
from dietcl.streams.index import open_manifest
from dietcl.streams.options import BAD_SHARE

DESCRIPTION = """Pre-train encoder and decoder by reconstruction of masked patches on any image set.

Examples:
  dietcl pretrain --stream glyphs-upstream --out runs/upstream
  dietcl pretrain --stream photos/manifest.parquet --preset tiny --updates 20000 --out runs/photos

Three options decide the others' defaults; name them and ask for --help again:
  --stream   a built-in stream (dietcl streams lists them), a manifest (.parquet) or a pack (.zip)
  --preset   micro, nano, tiny, small, base or large; default micro, or the one of the encoder's size
  --encoder  micro, nano or the timm name of a plain vision transformer; sets its own image size

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
    bad_images: float = BAD_SHARE
    """Share of the images that may turn out unreadable before it stops; others stand in for them."""


def main(arguments: list[str]) -> int:
    """Parse the options, pre-train, and say where the weights and pictures lie."""
    choices, rest = pick(arguments, stream="glyphs-upstream", preset="", encoder="")
    source = open_source(choices.stream)
    sizes = fitting_preset(choices.preset, choices.encoder)
    flat = tyro.conf.arg(name="")
    mirror = (source or manifest_facts(Path(choices.stream))).mirror
    fields: list[tuple[str, Any, Any]] = [
        ("pretraining", Annotated[Pretraining, flat], Pretraining(flip=mirror)),
        ("model", Annotated[ModelConfig, flat], sizes.model),
        ("where", Annotated[Where, flat], Where()),
    ]
    if source is not None:
        fields.append(("source", type(source), source))
    options: Any = parse(gather(*fields), rest, "dietcl pretrain", DESCRIPTION)
    manifest = Path(choices.stream) if source is None else options.source.prepare(default_cache())
    command = " ".join(["dietcl", "pretrain", *arguments])
    _carry_out(options.model, options.pretraining, manifest, options.where, command)
    return 0


def _carry_out(model: ModelConfig, config: Pretraining, manifest: Path, where: Where, command: str) -> None:
    """Pre-train with a progress bar, then store the weights and draw the pictures."""
    from dietcl.engine.device import pick_device, set_threads
    from dietcl.engine.pretraining_loop import pretrain
    from dietcl.models.checkpoints import save_weights
    from dietcl.report.pretraining import draw_pretraining

    set_threads(where.threads)
    console = Console(stderr=True)
    columns = (
        TextColumn("pre-training"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        bar = bars.add_task("", total=1.0, loss=1.0)

        def notify(sentence: str) -> None:
            console.print(sentence, soft_wrap=True, markup=False, highlight=False)

        def advance(fraction: float, loss: float) -> None:
            bars.update(bar, completed=fraction, loss=loss)

        try:
            index, device = open_manifest(manifest), pick_device(where.device)
            network = pretrain(model, config, index, where.out, device, advance, where.bad_images, notify)
        except Stopped as stop:
            notify(str(stop))
            raise SystemExit(STOPPED) from None
        except KeyboardInterrupt:
            notify(f"stopped; the same command goes on from the last checkpoint in {where.out}")
            raise SystemExit(130) from None
    with disk_errors(where.out):
        save_weights(network, where.out / "weights.safetensors", {"command": command}, half=where.half)
    print(draw_pretraining(where.out))
    for name in ("weights.safetensors", "loss.png", "reconstructions.png"):
        print(where.out / name)
