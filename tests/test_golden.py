"""Golden losses: what every method makes of the blob stream, as recorded in tests/golden.

After a change that is meant to alter them, record them anew with `python tests/test_golden.py`.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dietcl.config import Training
from dietcl.methods import METHODS, method_config
from dietcl.streams.augmentation import Augmentation
from helpers.recording import updates_of
from helpers.tiny import tiny_config, tiny_learner, write_blobs

FOLDER = Path(__file__).parent / "golden"
UPDATES = 20
# Seven updates in each of three time steps; the threshold lets both phases of DietCL be seen.
CASES: dict[str, tuple[str, dict[str, object]]] = {name: (name, {}) for name in METHODS} | {
    "dietcl": ("dietcl", {"threshold": "5.0"}),
    "dietcl-release": ("dietcl", vars(method_config("dietcl:release"))),
    "dietcl-labeled": ("dietcl", {"threshold": "5.0", "reconstruct": "labeled"}),
    "er-uniform": ("er", {"sampling": "uniform"}),
    "er-dietcl-flops": ("er", {"dietcl_flops": True}),
    "ewc-online": ("ewc", {"online": True, "fisher": "batch_mean"}),
    "l2p-unfrozen": ("l2p", {"frozen": False, "replay": False}),
    "cassle-fine-tune": ("cassle", {"classifier": "fine_tune"}),
    "dualnet-task-aware": ("dualnet", {"strategy": "task_aware"}),
    "linear-probe-sgd": ("linear_probe", {"head": "sgd"}),
}


def learned(manifest: Path, case: str) -> dict[str, list[object]]:
    """Learn the stream and return what was logged of its first updates, and the test loss after every time step."""
    method, options = CASES[case]
    # Spelled out, so that a preset may change without the golden losses.
    training = Training(batch=12, micro_batch=6, lr=1e-3, head_lr=1e-2, lr_floor=1e-4)
    config = tiny_config(manifest, method, budget="7", **options)
    learner = tiny_learner(replace(config, training=training, augmentation=Augmentation(crop=0.5)))
    kept = ("t", "phase", "update", "loss", "lr")
    updates = [{name: event[name] for name in kept} for event in updates_of(learner)[:UPDATES]]
    # Some methods make no updates; what they solve shows in their answers.
    return {"updates": updates, "test_loss": learner.counts.loss_sum.sum(1).tolist()}


def test_every_method_has_golden_losses():
    assert {method for method, _ in CASES.values()} == set(METHODS)
    assert {path.stem for path in FOLDER.glob("*.json")} == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_the_first_updates_are_as_recorded(blobs, case):
    recorded = json.loads((FOLDER / f"{case}.json").read_text())
    found = learned(blobs, case)
    assert found["test_loss"] == pytest.approx(recorded["test_loss"], rel=1e-4)
    assert sum(found["test_loss"]) > 0
    for was, now in zip(recorded["updates"], found["updates"], strict=True):
        assert [was[name] for name in ("t", "phase", "update")] == [now[name] for name in ("t", "phase", "update")]
        assert now["lr"] == pytest.approx(was["lr"], rel=1e-9)
        assert now["loss"] == pytest.approx(was["loss"], rel=1e-5)


def record() -> None:
    """Write the golden losses of every case."""
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_blobs(Path(folder))
        for case in CASES:
            found = learned(manifest, case)
            updates = ",\n".join(json.dumps(update) for update in found["updates"])
            test_loss = json.dumps(found["test_loss"])
            (FOLDER / f"{case}.json").write_text(f'{{"updates": [\n{updates}\n],\n"test_loss": {test_loss}}}\n')


if __name__ == "__main__":
    record()
