"""Builds a run's configuration from names and options: the one way to a RunConfig; free of torch."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dietcl.checked_options import check_options, check_value, unknown_option
from dietcl.config import PRESETS, Evaluation, Preset, RunConfig, StreamSource, preset, stream_title
from dietcl.errors import UserError
from dietcl.execution import Execution
from dietcl.files import MANIFEST, default_cache
from dietcl.methods import DEFAULT_METHOD, method_config
from dietcl.methods.method_options import Options
from dietcl.models.presets import SHIPPED, ModelConfig
from dietcl.streams.options import EVEN_CUTS, Cut, Recipe, RecipeOptions
from dietcl.streams.sources import SOURCES

if TYPE_CHECKING:  # `--help` needs neither
    import numpy as np
    import numpy.typing as npt

    from dietcl.streams.index import Index
    from dietcl.streams.manifest import Facts

_WIDTHS = {"tiny": 192, "small": 384, "base": 768, "large": 1024}  # of the presets' timm encoders
_PUBLISHED = ("pool", "image_size", "crop_ratio", "interpolation")  # options that an encoder has values of its own for
# The parts of a RunConfig whose options go by their own names.
GROUPS = ("method_config", "recipe", "training", "augmentation", "model", "evaluation")
_CUT = {"recipe", "time_steps", "cut"}
_PLAIN = ("budget", "accounting", "first_time_steps", "weights", "seed", "source")


def build_config(
    stream: str | Path = "glyphs", method: str = DEFAULT_METHOD, preset: str = "", encoder: str = "", **options: Any
) -> RunConfig:
    """Return the configuration of a run; options have the names that `dietcl train --help` lists, with underscores.

    Without a preset, an encoder takes the one of its size; `default_preset` says which one it is without either.
    """
    return with_options(default_config(str(stream), method, preset, encoder), **options)


def default_config(stream: str, method: str, size: str, encoder: str = "") -> RunConfig:
    """Return the configuration of METHOD or METHOD:VARIANT on a stream with every option at its default."""
    for name, value in (("method", method), ("preset", size), ("encoder", encoder)):
        check_value(name, str, value)
    source = open_source(stream)
    sizes = fitting_preset(size if size or encoder else default_preset(stream, method), encoder)
    facts: Any = source or manifest_facts(Path(stream))
    augmentation = sizes.augmentation if facts.mirror else dataclasses.replace(sizes.augmentation, flip=False)
    return RunConfig(
        method=method.partition(":")[0],
        method_config=method_options(method, sizes),
        stream=stream,
        source=source,
        recipe=default_recipe(facts),
        model=sizes.model,
        weights=resolve_weights("auto", sizes.model),
        training=sizes.training,
        augmentation=augmentation,
        budget=sizes.budget,
        evaluation=Evaluation(),
    )


def default_preset(stream: str, *methods: str) -> str:
    """Return an encoder of photos that stays as it is, on images of one's own, if all methods can solve their head.

    It is `lite` for methods that never train an encoder, `frozen` if one of them would, and otherwise `micro`.
    """
    options = [method_config(method) for method in methods]
    if stream in SOURCES or not all(getattr(own, "solves_frozen", False) for own in options):
        return "micro"
    return "frozen" if any(getattr(own, "trains_encoder", True) for own in options) else "lite"


def fitting_preset(size: str = "", encoder: str = "") -> Preset:
    """Return a preset by name, or the one closest in width to an encoder, with what that was published with."""
    if not encoder:
        return preset(size or "micro")
    of_encoder = {sizes.model.encoder: sizes for sizes in PRESETS.values()}
    if encoder in of_encoder:
        found = of_encoder[encoder]
        own = {name: getattr(found.model, name) for name in _PUBLISHED}
    else:
        from dietcl.models.timm_models import published

        facts = published(encoder)
        found = PRESETS[min(_WIDTHS, key=lambda name: abs(math.log(_WIDTHS[name] / facts.width)))]
        own = {name: getattr(facts, name) for name in _PUBLISHED[1:]} | {"pool": "auto"}
    found = preset(size) if size else found
    return dataclasses.replace(found, model=dataclasses.replace(found.model, encoder=encoder, **own))


def with_options(config: RunConfig, **options: Any) -> RunConfig:
    """Return a configuration with some options changed, each found in the part that it belongs to."""
    # Numbers of numpy become plain ones, which JSON can hold.
    options = {name: value.item() if getattr(value, "ndim", None) == 0 else value for name, value in options.items()}
    changes: dict[str, Any] = {name: options.pop(name) for name in _PLAIN if name in options}
    if isinstance(own_source := changes.get("source"), Mapping):
        if config.source is None:
            raise UserError(f"source {dict(own_source)}: {config.stream} has no such options; leave it out")
        check_options(type(config.source), own_source)
        changes["source"] = dataclasses.replace(config.source, **own_source)
    for group in GROUPS:
        part = getattr(config, group)
        own = {field.name: options.pop(field.name) for field in dataclasses.fields(part) if field.name in options}
        if group == "recipe" and (own.keys() & _CUT or part.cut not in EVEN_CUTS):
            asked = RecipeOptions(**{**dataclasses.asdict(part), "time_steps": "auto", "cut": "auto", **own})
            changes[group] = resolve_recipe(asked, config.stream, changes.get("source", config.source))
        elif own:
            changes[group] = dataclasses.replace(part, **own)
    if options:
        raise _unknown(next(iter(options)), config)
    if "budget" in changes:
        changes["budget"] = str(changes["budget"])
    if "weights" in changes:
        changes["weights"] = resolve_weights(changes["weights"], changes.get("model", config.model))
    return dataclasses.replace(config, **changes)


def default_folder(config: RunConfig) -> Path:
    """Return where a run goes unless the user says otherwise."""
    return Path("runs") / f"{stream_title(config.stream)}-{config.method}-{config.hash()}"


def _unknown(option: str, config: RunConfig) -> UserError:
    parts = [*(getattr(config, group) for group in GROUPS), Execution()]
    known = [*_PLAIN, "preset", "encoder", *(field.name for part in parts for field in dataclasses.fields(part))]
    if option in known:
        return UserError(f"{option}: is an option of a run, not of a stream; give it to train")
    return unknown_option(option, known, f"`dietcl train --method {config.method} --help` lists the options")


def method_options(method: str, sizes: Preset) -> Options:
    """Return the options of METHOD or METHOD:VARIANT at a size."""
    return dataclasses.replace(method_config(method), **sizes.methods.get(method.partition(":")[0], {}))


def resolve_weights(weights: str | Path | None, model: ModelConfig) -> str | None:
    """Return what a RunConfig says of the first weights: `shipped`, a file, a timm name, or None for random ones."""
    if weights == "auto" or (weights == model.encoder and model.encoder in SHIPPED):
        return "shipped" if model.encoder in SHIPPED else model.encoder
    return str(weights) if isinstance(weights, Path) else None if weights == "random" else weights


def open_source(stream: str) -> StreamSource | None:
    """Return the default options of a built-in stream or a pack; None if the stream is a manifest."""
    if Path(stream).suffix == ".parquet":
        return None
    if Path(stream).suffix == ".zip":
        from dietcl.streams.sources.readers.webp_zip import Strips

        return Strips(path=Path(stream))
    if stream not in SOURCES:
        if (Path(stream) / MANIFEST).is_file():
            raise UserError(f"--stream {stream}: is a folder; give the manifest in it, {Path(stream) / MANIFEST}")
        if Path(stream).exists():
            raise UserError(f"--stream {stream}: is not a manifest; create one: dietcl data prepare {stream}")
        choice = f"choose from {', '.join(SOURCES)}, or give a manifest (.parquet)"
        raise UserError(f"--stream {stream}: no such stream; {choice}")
    return SOURCES[stream]()


def default_recipe(facts: Any) -> Recipe:
    """Return how a stream is cut unless the user says otherwise, by its source or by a manifest's facts."""
    cut: Cut = getattr(facts, "cut", "count")
    return Recipe(recipe=facts.recipe, time_steps=facts.time_steps, label_rate=facts.label_rate, cut=cut)


def recipe_options(default: Recipe) -> RecipeOptions:
    """Return the options that resolve to a stream's default recipe."""
    return RecipeOptions(recipe=default.recipe, label_rate=default.label_rate)


def resolve_recipe(options: RecipeOptions, stream: str, source: StreamSource | None) -> Recipe:
    """Return a recipe with `auto` resolved: as the stream itself states, or by its training images."""
    default = default_recipe(source or manifest_facts(Path(stream)))
    cut, time_steps = options.cut, options.time_steps
    is_default = options.recipe == default.recipe and cut in ("auto", default.cut)
    if options.recipe != "time":
        if cut not in ("auto", default.cut):
            raise UserError(f"--cut {cut}: cuts by time, so it needs --recipe time")
        cut = default.cut
        if time_steps == "auto":
            time_steps = default.time_steps
            if options.recipe == "class" and not is_default:
                index, train = _open_index(stream, source)
                time_steps = max(1, min(time_steps, len({*index.label[train].tolist()} - {-1})))
    elif time_steps != "auto":
        cut = (default.cut if is_default and default.cut in EVEN_CUTS else "count") if cut == "auto" else cut
    elif is_default and default.cut in EVEN_CUTS:
        cut, time_steps = default.cut, default.time_steps
    else:
        cut, time_steps = _cut_by_times(default.cut if is_default else cut, stream, source)
    return Recipe(**{**dataclasses.asdict(options), "cut": cut, "time_steps": time_steps})


def _cut_by_times(cut: Cut | Literal["auto"], stream: str, source: StreamSource | None) -> tuple[Cut, int]:
    """Return the cut and the number of time steps that suit the times of a stream's training images."""
    from dietcl.streams.times import count_steps, suggest_cut

    index, train = _open_index(stream, source)
    times = index.time[train]
    times = times[times == times]  # an unknown time is nan
    if not len(times):
        raise UserError("--recipe time: no training row of the manifest has a time; fill in the 'time' column")
    return suggest_cut(times) if cut == "auto" else (cut, count_steps(times, cut))


def _open_index(stream: str, source: StreamSource | None) -> "tuple[Index, npt.NDArray[np.bool_]]":
    """Return the index of a stream's manifest, and which rows are training images."""
    from dietcl.streams.index import open_manifest
    from dietcl.streams.manifest import SPLITS

    index = open_manifest(source.prepare(default_cache()) if source else Path(stream))
    return index, index.split == SPLITS.index("train")


def manifest_facts(manifest: Path) -> "Facts":
    """Return what a manifest says about itself: like a source, it has recipe, time_steps, label_rate and mirror."""
    from dietcl.streams.manifest import read_facts

    facts = read_facts(manifest)
    try:
        default_recipe(facts)
    except UserError as error:
        raise UserError(f"{manifest}: has invalid metadata ({error}); prepare the data again") from None
    return facts
