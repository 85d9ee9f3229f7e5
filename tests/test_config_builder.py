"""resolve_recipe and build_config: `auto` becomes what the stream states, or what its images call for."""

from pathlib import Path
from typing import Any

import pytest

from dietcl.config import stream_title
from dietcl.config_builder import build_config, default_config, default_preset, resolve_recipe, with_options
from dietcl.errors import UserError
from dietcl.streams.manifest import Facts, write_manifest
from dietcl.streams.options import Recipe, RecipeOptions

DAY = 86_400
MARCH = 1_772_323_200.0  # 2026-03-01


def manifest(folder: Path, time: list[float | None], facts: Facts | None = None) -> str:
    """Write a manifest of training images of three classes with these times."""
    count = len(time)
    columns: Any = {"id": [str(i) for i in range(count)], "file": ["x.jpg"] * count, "offset": [-1] * count}
    columns |= {"label": ["abc"[i % 3] for i in range(count)], "time": time, "split": ["train"] * count}
    return str(write_manifest(folder / "m.parquet", columns, facts))


def resolved(stream: str, **options: Any) -> tuple[str, str, int]:
    """The recipe, the cut and the number of time steps that options become."""
    recipe = resolve_recipe(RecipeOptions(**options), stream, None)
    return recipe.recipe, recipe.cut, recipe.time_steps


def test_what_a_manifest_states_is_the_default(tmp_path: Path) -> None:
    stream = manifest(tmp_path, [MARCH + DAY * i for i in range(9)], Facts(recipe="time", time_steps=7, cut="duration"))
    assert resolved(stream, recipe="time") == ("time", "duration", 7)
    assert resolved(stream, recipe="time", time_steps=3) == ("time", "duration", 3)
    assert resolved(stream, recipe="time", cut="count") == ("time", "count", 9)
    assert resolved(stream, recipe="time", cut="week") == ("time", "week", 3)  # from a Sunday to the Monday after next
    assert resolved(stream, recipe="data") == ("data", "duration", 7)
    assert resolved(stream, recipe="class") == ("class", "duration", 3)  # as many as there are classes


def test_times_decide_where_the_manifest_states_nothing(tmp_path: Path) -> None:
    dated = manifest(tmp_path, [MARCH + DAY * (i // 20) for i in range(80)] + [None])
    assert resolved(dated, recipe="time") == ("time", "day", 4)
    assert resolved(dated, recipe="time", time_steps=2) == ("time", "count", 2)
    assert resolved(dated, recipe="class") == ("class", "count", 20)  # its own recipe, stated or not
    many = manifest(tmp_path, [float(i) for i in range(51)])
    assert resolved(many, recipe="time") == ("time", "count", 20)


def test_a_calendar_cut_counts_the_days_that_are_left(tmp_path: Path) -> None:
    # A pack leaves out what cannot be read, and with it perhaps a whole day.
    stream = manifest(tmp_path, [MARCH, MARCH + DAY], Facts(recipe="time", time_steps=3, cut="day"))
    assert build_config(stream).recipe == Recipe(recipe="time", time_steps=2, cut="day", label_rate=1.0)


def test_cuts_that_cannot_be(tmp_path: Path) -> None:
    stream = manifest(tmp_path, [None, None])
    with pytest.raises(UserError, match="--cut day: cuts by time, so it needs --recipe time"):
        build_config(stream, cut="day")
    with pytest.raises(UserError, match="no training row of the manifest has a time"):
        build_config(stream, recipe="time")
    years = manifest(tmp_path, [1990.0, 2010.0])
    with pytest.raises(UserError, match="are not dates"):
        build_config(years, recipe="time", cut="month")


def test_options_by_name_keep_what_they_do_not_touch(tmp_path: Path) -> None:
    stream = manifest(tmp_path, [MARCH + DAY * i for i in range(9)], Facts(recipe="time", time_steps=9, cut="day"))
    config = with_options(default_config(stream, "er", "micro"), time_steps=4)
    assert (config.recipe.cut, config.recipe.time_steps) == ("count", 4)
    config = with_options(config, label_rate=0.5, seed=3)
    assert (config.recipe.time_steps, config.recipe.label_rate, config.seed) == (4, 0.5, 3)


@pytest.mark.parametrize("stream", ["glyphs", "glyphs-drift", "digits"])
def test_built_in_streams_resolve_to_their_own_recipe(stream: str) -> None:
    default = default_config(stream, "er", "micro")
    assert with_options(default, time_steps="auto") == default


def test_data_that_was_prepared_in_the_cache_goes_by_its_own_name(cache: Path) -> None:
    assert stream_title(str(cache / "photos-0123456789ab" / "manifest.parquet")) == "photos"
    assert stream_title("mine/photos-0123456789ab/manifest.parquet") == "photos-0123456789ab"


def test_methods_that_leave_the_encoder_as_it_is_take_lite_on_images_of_ones_own() -> None:
    frozen = ("linear_probe", "ncm", "acm", "ranpac:frozen")
    assert {default_preset("photos/manifest.parquet", method) for method in frozen} == {"lite"}
    assert default_preset("photos/manifest.parquet", *frozen) == "lite"
    assert {default_preset("glyphs", method) for method in frozen} == {"micro"}
    for trained in ("er", "ranpac", "l2p", "dietcl"):  # l2p is frozen too, but needs prompts
        assert default_preset("photos/manifest.parquet", trained) == "micro"
        assert default_preset("photos/manifest.parquet", "ncm", trained) == "micro"
        assert default_preset("photos/manifest.parquet", "larder", trained) == "micro"


def test_larder_takes_lite_as_it_is_on_images_of_ones_own(blobs: Path) -> None:
    config = build_config(blobs, "larder")
    assert (config.model.encoder, config.model.train) == ("lite", "head")
    assert default_preset("photos/manifest.parquet", "larder", "ncm") == "frozen"
    assert build_config("glyphs", "larder").model == build_config("glyphs", "larder", "micro").model
    named = build_config(blobs, "larder", encoder="lite")  # whoever names an encoder decides what of it learns
    assert named.model.train == "full"
    assert build_config(blobs, "larder", train="full").model.train == "full"


def test_the_weights_of_a_shipped_encoder_go_by_its_name_as_well() -> None:
    assert build_config("glyphs", "ncm", encoder="lite", weights="lite").weights == "shipped"
