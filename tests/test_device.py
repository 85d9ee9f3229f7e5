"""What the network computes in: tried before it is trusted, and only the network's own business."""

import json

import pytest
import torch

from dietcl.cli.main import main
from dietcl.engine import device
from dietcl.engine.device import cpu_has_bfloat16, pick_precision
from dietcl.engine.learner import Equipment, assemble
from dietcl.engine.loop import learn
from dietcl.errors import UserError
from dietcl.methods import METHODS
from dietcl.run import stream_of
from helpers.marks import mostly_long
from helpers.recording import Notes
from helpers.runs import interrupt, outcome, run, small
from helpers.tiny import AMPLE, tiny_config

CPU = torch.device("cpu")


def test_the_default_on_a_cpu_is_float32():
    assert pick_precision("auto", CPU) == pick_precision("float32", CPU) == torch.float32


@pytest.mark.parametrize("trial", ["import os, signal; os.kill(os.getpid(), signal.SIGILL)", "print(False)", "1 / 0"])
def test_a_cpu_that_dies_of_bfloat16_only_takes_a_child_along(monkeypatch, trial):
    monkeypatch.setattr(device, "_TRIAL", trial)
    assert not cpu_has_bfloat16()
    with pytest.raises(UserError, match="--precision bfloat16: does not work on this cpu; use float32"):
        pick_precision("bfloat16", CPU)


def test_this_cpu_can_be_tried():
    if cpu_has_bfloat16():
        assert pick_precision("bfloat16", CPU) == torch.bfloat16
    else:
        with pytest.raises(UserError, match="does not work"):
            pick_precision("bfloat16", CPU)


@pytest.mark.parametrize("method", mostly_long(METHODS, {"dietcl", "derpp", "ranpac"}))
def test_every_method_learns_in_bfloat16_nearly_as_in_float32(blobs, method):
    config = tiny_config(blobs, method, budget=AMPLE.get(method, "2"))
    stream, index = stream_of(config)
    losses, kept = {}, {}
    for precision in (torch.float32, torch.bfloat16):
        learner = assemble(config, stream, Equipment(index, precision=precision), Notes())
        for _ in learn(learner):
            pass
        kept[precision] = [*learner.network.state_dict().values(), *learner.method.state().values()]
        assert not any(value.dtype == torch.bfloat16 for value in kept[precision])
        losses[precision] = learner.counts.loss_sum.sum()
        receipts = learner.ledger.receipts()
    assert not all(torch.equal(*pair) for pair in zip(*kept.values(), strict=True))  # it was used
    assert losses[torch.bfloat16] == pytest.approx(losses[torch.float32], rel=0.1)
    assert all(step["spent"] <= step["budget"] * (1 + 1e-9) for step in receipts["steps"])


def test_a_run_keeps_its_precision_and_goes_on_in_it(blobs, tmp_path):
    config = tiny_config(blobs, "dietcl", budget="3", threshold="2.0")
    run(config, tmp_path / "whole", precision="bfloat16")
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", interrupt(2, 0.6), precision="bfloat16", checkpoint_every=1)
    with pytest.raises(UserError, match=r"another precision \(bfloat16 in the folder, float32 requested\)"):
        run(config, tmp_path / "run")
    run(config, tmp_path / "run", precision="bfloat16")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_the_command_line_takes_a_precision(blobs, tmp_path, capfd):
    arguments = ["train", "--method", "dietcl", *small(blobs), "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main([*arguments, "--precision", "bfloat16"]) == 0
    assert json.loads((tmp_path / "run/config.json").read_text())["precision"] == "bfloat16"
    assert main(arguments) == 2
    assert "precision (bfloat16 in the folder, float32 requested)" in capfd.readouterr().err
