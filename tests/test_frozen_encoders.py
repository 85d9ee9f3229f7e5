"""The committed comparison of frozen encoders: its table follows from its counts, and a cell can be run again."""

import json
from pathlib import Path

import pytest

from reproduction import frozen_encoders

RESULTS = Path(__file__).parent.parent / "results"
LINES = [json.loads(line) for line in (RESULTS / frozen_encoders.COUNTS).read_text().splitlines()]


def test_the_table_follows_from_the_counts():
    assert "\n".join(frozen_encoders._table(LINES)) == (RESULTS / frozen_encoders.TABLE).read_text()


def test_every_stream_encoder_and_seed_is_there_once_under_one_configuration_a_seed():
    cells = [(line["dataset"], line["encoder"], line["seed"]) for line in LINES]
    streams, encoders, seeds = frozen_encoders.LABEL_RATES, frozen_encoders.ENCODERS, frozen_encoders.SEEDS
    assert len(cells) == len(streams) * len(encoders) * len(seeds)
    assert set(cells) == {(a, b, c) for a in streams for b in encoders for c in seeds}
    assert len({line["hash"] for line in LINES}) == len(LINES)


def test_five_labels_a_class_of_cifar_give_forty_percent_of_all_test_images():
    lite = [line for line in LINES if (line["dataset"], line["encoder"]) == ("cifar100", "lite")]
    assert {(line["labels"], line["count"]) for line in lite} == {(500, 10_000)}
    assert min(line["correct"] for line in lite) >= 4_000


@pytest.mark.long
def test_a_cell_comes_out_as_it_was_committed():
    again = frozen_encoders._run("glyphs", "nano", 0, None, 1)
    (kept,) = (line for line in LINES if (line["dataset"], line["encoder"], line["seed"]) == ("glyphs", "nano", 0))
    assert {name: again[name] for name in ("labels", "count", "hash")} == {
        n: kept[n] for n in ("labels", "count", "hash")
    }
    assert abs(again["correct"] - kept["correct"]) <= 2  # another kind of processor may round otherwise
