"""Pre-training: resumed to the same end, bit for bit, and nothing published that is not finite."""

import json
from dataclasses import replace

import pytest
import torch

from dietcl.config import Pretraining
from dietcl.engine.pretraining_loop import pretrain
from dietcl.errors import UserError
from dietcl.streams.index import open_manifest
from helpers.tiny import MODEL

CONFIG = Pretraining(updates=7, batch=8, checkpoint_every=3)


def nothing(fraction, loss):
    pass


def run(blobs, folder, config=CONFIG, progress=nothing, model=MODEL, **options):
    return pretrain(model, config, open_manifest(blobs), folder, torch.device("cpu"), progress, **options).state_dict()


@pytest.mark.parametrize("stop_after", [1, 3, 5, 7])
def test_a_stopped_pretraining_ends_as_if_it_had_not_been(blobs, tmp_path, stop_after):
    made = []

    def stop(fraction, loss):
        made.append(fraction)
        if len(made) == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(blobs, tmp_path / "stopped", progress=stop)
    again = []
    resumed = run(blobs, tmp_path / "stopped", progress=lambda fraction, loss: again.append(fraction))
    assert len(again) == 7 - (stop_after - 1) // 3 * 3  # Ctrl-C came before the checkpoint of that update
    whole = run(blobs, tmp_path / "whole")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    events = [(tmp_path / name / "events.jsonl").read_text().splitlines() for name in ("stopped", "whole")]
    assert events[0][:-1] == events[1][:-1]
    assert all('"event": "end"' in lines[-1] for lines in events)  # has clock fields


def test_what_cannot_start_does_not_claim_the_folder(blobs, tmp_path):
    with pytest.raises(UserError, match="nonsense"):
        run(blobs, tmp_path / "out", model=replace(MODEL, encoder="nonsense"))
    run(blobs, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["model"]["encoder"] == "micro"


def test_weights_that_are_not_finite_are_not_kept(blobs, tmp_path, monkeypatch):
    def spoil(optimizer):
        optimizer.param_groups[0]["params"][0].data.fill_(float("nan"))

    monkeypatch.setattr(torch.optim.AdamW, "step", spoil)
    with pytest.raises(UserError, match=r"a weight is not finite after update 0; .*another --out"):
        run(blobs, tmp_path / "out", Pretraining(updates=1, batch=8))
    assert not list(tmp_path.glob("out/checkpoints/0*"))


def test_a_damaged_configuration_is_named(blobs, tmp_path):
    run(blobs, tmp_path / "out")
    (tmp_path / "out/config.json").write_text("")
    with pytest.raises(UserError, match=r"config\.json: not readable"):
        run(blobs, tmp_path / "out")


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(blobs, tmp_path):
    whole = run(blobs, tmp_path / "out")
    _, last = sorted((tmp_path / "out/checkpoints").iterdir())
    last.write_bytes(last.read_bytes()[:-1])
    said, made = [], []
    again = run(blobs, tmp_path / "out", progress=lambda fraction, loss: made.append(fraction), notify=said.append)
    assert len(made) == 1  # after update 6, the checkpoint before the last
    assert last.name in said[0]
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    for path in (tmp_path / "out/checkpoints").glob("0*"):
        path.write_bytes(b"torn")
    with pytest.raises(UserError, match="none of the checkpoints is intact"):
        run(blobs, tmp_path / "out")


@pytest.mark.parametrize(
    "options", [{"weight_decay": float("nan")}, {"weight_decay": -1}, {"lr": 1e38}, {"lr": 0}, {"warmup": 1}]
)
def test_impossible_options_are_refused(options):
    with pytest.raises(UserError, match=f"--{next(iter(options)).replace('_', '-')}"):
        Pretraining(**options)
