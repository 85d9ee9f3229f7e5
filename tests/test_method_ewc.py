"""EWC: the Fisher information by hand, and the memory that its pairs need."""

import math
from dataclasses import replace

import pytest
import torch

from dietcl.methods import ewc
from helpers.recording import run_through
from helpers.tiny import tiny_config, tiny_learner
from test_method_importance import learn_step, pair_of, plain_images

# A logistic unit: two classes whose logits are w·x and 0, with x the first feature.


def logistic(blobs, fisher, labels):
    learner = tiny_learner(tiny_config(blobs, "ewc", fisher=fisher))
    network = learner.network
    network.head.grow(2, torch.Generator())
    with torch.no_grad():
        network.head.weight.zero_(), network.head.bias.zero_()
        network.encoder.vit.norm.weight.zero_(), network.encoder.vit.norm.bias.zero_()
        network.encoder.vit.norm.bias[0] = 1.0  # so every image has the feature x = 1
    learner.ledger.open(1, 2)
    part = plain_images(labels, 1)
    learn_step(learner, [replace(part, images=part.images.float())])
    return float(pair_of(learner).importance["head.weight"][0, 0])


@pytest.mark.parametrize(
    ("fisher", "labels", "value"),
    [
        ("per_sample", [0], 0.25),
        ("batch_mean", [0], 0.25),
        ("per_sample", [1, 0], 0.25),
        ("batch_mean", [1, 0], 0.0),
        ("batch_mean", [1, 0, 0, 0], 0.0625),
    ],
)
def test_hand_values_of_a_logistic_unit(blobs, fisher, labels, value):
    assert logistic(blobs, fisher, labels) == pytest.approx(value, abs=1e-7)


# Pairs.


def test_more_than_ten_pairs_come_back_in_their_order():
    pairs = [ewc.Pair({"w": torch.tensor([float(i)])}, {"w": torch.tensor([2.0 * i])}) for i in range(12)]
    again = ewc.unpack(dict(sorted(ewc.pack(pairs).items())))
    assert [float(pair.anchor["w"]) for pair in again] == list(range(12))
    assert [float(pair.importance["w"]) for pair in again] == [2 * i for i in range(12)]


# Memory.


def said_with(blobs, monkeypatch, available, **options):
    learner = tiny_learner(tiny_config(blobs, "ewc", budget="0.5", **options))
    pair = 2 * sum(value.nbytes for value in learner.net.weights().values())
    monkeypatch.setattr(ewc, "available_memory", lambda device: available(pair, len(learner.method._pairs)))
    said = []
    learner.net.notify = said.append
    run_through(learner)
    return said


def test_the_user_is_told_once_when_few_pairs_fit(blobs, monkeypatch):
    said = said_with(blobs, monkeypatch, lambda pair, held: 4.9 * 1.5 * pair + held * pair / 2)
    assert len(said) == 1
    assert "--online" in said[0]
    assert "time steps" in said[0]


def test_a_full_memory_is_told_too(blobs, monkeypatch):
    (sentence,) = said_with(blobs, monkeypatch, lambda pair, held: 0)
    assert "about 0 more" in sentence


def test_nothing_is_said_while_there_is_room_or_where_nothing_grows(blobs, monkeypatch):
    assert said_with(blobs, monkeypatch, lambda pair, held: 5.1 * 1.5 * pair + held * pair / 2) == []
    assert said_with(blobs, monkeypatch, lambda pair, held: 0, online=True) == []
    assert said_with(blobs, monkeypatch, lambda pair, held: 0, strength=0.0) == []


def test_the_memory_is_what_the_machine_says_it_has(tmp_path, monkeypatch):
    cpu = torch.device("cpu")
    assert ewc.available_memory(cpu) > 2**20
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(ewc, "Path", lambda name: meminfo)
    meminfo.write_text("MemTotal:  9000 kB\nMemAvailable:    2000 kB\nHugePages_Total:   0\n")
    assert ewc.available_memory(cpu) == 2000 * 1024
    meminfo.unlink()
    pages = {"SC_AVPHYS_PAGES": 7, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(ewc.os, "sysconf", pages.__getitem__, raising=False)
    assert ewc.available_memory(cpu) == 7 * 4096
    monkeypatch.delattr(ewc.os, "sysconf")
    assert ewc.available_memory(cpu) == math.inf
