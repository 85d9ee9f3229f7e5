"""Golden losses: what every method makes of the blob stream, as recorded in tests/golden.

After a change that is meant to alter them, record them again with `python tests/test_golden.py`.

Another CPU rounds differently. Most methods stay within 1e-5 of the record, but a correlation over six images (Barlow
Twins, in cassle and dualnet) amplifies rounding a thousandfold per update. How much is measured, not guessed:
`golden_sensitivity.json` (written by `python tests/test_golden.py sensitivity`) holds by how much the losses change if
the initial weights are multiplied by 1 + 1e-7 z with standard normal z, which is about one unit in the last place. Ten
times that change is allowed.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dietcl.config import Training
from dietcl.methods import METHODS, method_config
from dietcl.streams.options import Augmentation
from helpers.recording import updates_of
from helpers.tiny import tiny_config, tiny_learner, write_blobs

FOLDER = Path(__file__).parent / "golden"
SENSITIVITY = Path(__file__).parent / "golden_sensitivity.json"
NUDGES = (1, 2, 3)  # seeds
MARGIN = 10
# A term that is 0 up to rounding, such as lwf's distillation before the first update, has no relative error.
ZERO = 1e-6
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


def learned(manifest: Path, case: str, nudge: int | None = None) -> dict[str, list[Any]]:
    """Learn the stream and return what was logged of its first updates, and the test loss after every time step.

    `nudge` is the seed by which the initial weights are changed in their last place.
    """
    method, options = CASES[case]
    # Spelled out, so that a preset may change without the golden losses.
    training = Training(batch=12, micro_batch=6, lr=1e-3, head_lr=1e-2, lr_floor=1e-4)
    config = tiny_config(manifest, method, budget="7", **options)
    learner = tiny_learner(replace(config, training=training, augmentation=Augmentation(crop=0.5)))
    if nudge is not None:
        generator = torch.Generator().manual_seed(nudge)
        for module in (learner.network, *learner.method.modules().values()):
            for weight in module.parameters():
                weight.data *= 1 + 1e-7 * torch.randn(weight.shape, generator=generator)
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
    changes = json.loads(SENSITIVITY.read_text())[case]
    found = learned(blobs, case)
    assert found["test_loss"] == pytest.approx(recorded["test_loss"], rel=max(1e-4, MARGIN * changes["test_loss"]))
    assert sum(found["test_loss"]) > 0
    for was, now, change in zip(recorded["updates"], found["updates"], changes["updates"], strict=True):
        assert [was[name] for name in ("t", "phase", "update")] == [now[name] for name in ("t", "phase", "update")]
        assert now["lr"] == pytest.approx(was["lr"], rel=1e-9)
        assert now["loss"] == pytest.approx(was["loss"], rel=max(1e-5, MARGIN * change), abs=ZERO)


def test_the_first_update_is_compared_strictly():
    for changes in json.loads(SENSITIVITY.read_text()).values():
        assert all(MARGIN * change < 1e-4 for change in changes["updates"][:1])


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


def sensitivity(manifest: Path, case: str) -> dict[str, object]:
    """Return by how much the losses of a case change under nudged weights, the largest so far at every update."""
    plain, *nudged = [learned(manifest, case, nudge) for nudge in (None, *NUDGES)]
    largest, updates = 0.0, []
    for number, update in enumerate(plain["updates"]):
        for name, value in update["loss"].items():
            change = max(abs(other["updates"][number]["loss"][name] - value) for other in nudged)
            largest = max(largest, change / abs(value)) if change > ZERO else largest
        updates.append(float(f"{largest:.1e}"))
    pairs = [pair for other in nudged for pair in zip(plain["test_loss"], other["test_loss"], strict=True) if pair[0]]
    return {"updates": updates, "test_loss": float(f"{max(abs(b - a) / a for a, b in pairs):.1e}")}


def measure_sensitivity() -> None:
    """Write the sensitivity of every case."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_blobs(Path(folder))
        lines = [f"{json.dumps(case)}: {json.dumps(sensitivity(manifest, case))}" for case in CASES]
    SENSITIVITY.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    measure_sensitivity() if sys.argv[1:] == ["sensitivity"] else record()
