"""`dietcl pretrain`: masked pre-training of encoder and decoder."""

from dataclasses import dataclass
from pathlib import Path

from dietcl.cli.config_options import flat, gather, parse, pick, source_fields
from dietcl.cli.progress import notify, progress_bar
from dietcl.config import Pretraining
from dietcl.config_builder import fitting_preset, manifest_facts, open_source
from dietcl.errors import Stopped
from dietcl.files import default_cache, disk_errors
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
    """The folder of the result and what computes it."""

    out: Path = Path("runs/pretrain")
    """Folder for weights.safetensors, loss.png and reconstructions.png."""
    half: bool = False
    """Store the weights in 16 bits."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    threads: int | None = None
    """CPU threads (all cores by default)."""
    bad_images: float = BAD_SHARE
    """Share of the images that may turn out unreadable before it stops; they are replaced by others."""


def main(arguments: list[str]) -> int:
    """Pre-train with a progress bar, store the weights and draw the pictures."""
    choices, rest = pick(arguments, stream="glyphs-upstream", preset="", encoder="")
    source = open_source(choices.stream)
    flip = (source or manifest_facts(Path(choices.stream))).mirror
    fields = (
        flat("pretraining", Pretraining(flip=flip)),
        flat("model", fitting_preset(choices.preset, choices.encoder).model),
        flat("where", Where()),
    )
    options = parse(gather(*fields, *source_fields(source)), rest, "dietcl pretrain", DESCRIPTION)
    config: Pretraining = options.pretraining
    where: Where = options.where
    manifest = options.source.prepare(default_cache()) if source else Path(choices.stream)
    from dietcl.engine.device import pick_device, set_threads
    from dietcl.engine.pretraining_loop import pretrain
    from dietcl.models.checkpoints import save_weights
    from dietcl.report.pretraining import draw_pretraining

    set_threads(where.threads)
    with progress_bar("pre-training", "updates", config.updates, transient=False) as update:

        def advance(fraction: float, loss: float) -> None:
            update(round(fraction * config.updates), title=f"pre-training, loss {loss:.4f}")

        try:
            index, device = open_manifest(manifest), pick_device(where.device)
            network = pretrain(options.model, config, index, where.out, device, advance, where.bad_images, notify)
        except Stopped as stop:
            notify(str(stop))
            raise SystemExit(STOPPED) from None
        except KeyboardInterrupt:
            notify(f"stopped; run the same command to resume from the last checkpoint in {where.out}")
            raise SystemExit(130) from None
    with disk_errors(where.out):
        command = " ".join(["dietcl", "pretrain", *arguments])
        save_weights(network, where.out / "weights.safetensors", {"command": command}, half=where.half)
    print(draw_pretraining(where.out))
    for name in ("weights.safetensors", "loss.png", "reconstructions.png"):
        print(where.out / name)
    return 0
