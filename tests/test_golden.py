"""Golden losses: what every method makes of the blob stream, as recorded in tests/golden.

After a change that is meant to alter them, record them again with `python tests/test_golden.py`; with names of cases
after it, these alone. A new case also needs its sensitivity, see below.

Another CPU rounds differently. Most methods stay within 1e-5 of the record, but a correlation over six images (Barlow
Twins, in cassle and dualnet) amplifies rounding a thousandfold per update, and larder keeps a guess or not. How much
is measured, not guessed: `golden_sensitivity.json` (written by `python tests/test_golden.py sensitivity`) holds by how
much the losses change if the initial weights are multiplied by 1 + e z with standard normal z, where e is about one
unit in the last place. Ten times that change is allowed, but at most 1e-3: a loss that may change by more is not
compared, as it would not show a fault. A case with such losses has a twin in double precision, where rounding stays
small until the end.
"""

import json
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dietcl.config import Training
from dietcl.engine.learner import Learner
from dietcl.methods import METHODS, method_config
from dietcl.streams import augment
from dietcl.streams.options import MEAN, STD, Augmentation
from helpers.recording import updates_of
from helpers.tiny import tiny_config, tiny_learner, write_blobs

FOLDER = Path(__file__).parent / "golden"
SENSITIVITY = Path(__file__).parent / "golden_sensitivity.json"
NUDGES = (1, 2, 3)  # seeds
MARGIN = 10
LIMIT = 1e-3
DOUBLE = "-double"  # ends the name of a case in double precision
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
TWINS = ("cassle", "cassle-fine-tune", "dualnet", "dualnet-task-aware", "larder")
CASES |= {case + DOUBLE: CASES[case] for case in TWINS}
# By case, a term whose weight must show: its value is logged without the weight.
WEIGHTED = {
    "cassle-double": "distill",
    "ccic": "cross",
    "derpp": "logits",
    "dietcl": "reconstruct",
    "dualnet-double": "soft targets",
    "ewc": "penalty",
    "fixmatch": "guess",
    "l2p": "keys",
    "lwf": "distill",
    "mas": "penalty",
}


@contextmanager
def double_precision() -> Iterator[None]:
    """Compute in float64 from the images on."""

    def normalize(images: torch.Tensor) -> torch.Tensor:
        return images.double().div_(255).sub_(MEAN).div_(STD)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(augment, "normalize", normalize)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)


def learned(manifest: Path, case: str, nudge: int | None = None, flipped: str = "") -> dict[str, list[Any]]:
    """Learn the stream and return what was logged of its first updates, and the test loss after every time step.

    `nudge` is the seed by which the initial weights are changed in their last place; `flipped` is a term whose weight
    gets the wrong sign.
    """
    if case.endswith(DOUBLE):
        with double_precision():
            return _learned(manifest, case, nudge, flipped)
    return _learned(manifest, case, nudge, flipped)


def _learned(manifest: Path, case: str, nudge: int | None, flipped: str) -> dict[str, list[Any]]:
    method, options = CASES[case]
    # Spelled out, so that a preset may change without the golden losses.
    training = Training(batch=12, micro_batch=6, lr=1e-3, head_lr=1e-2, lr_floor=1e-4)
    config = tiny_config(manifest, method, budget="7", **options)
    learner = tiny_learner(replace(config, training=training, augmentation=Augmentation(crop=0.5)))
    learner.network.to(torch.get_default_dtype())  # its table of positions is of float32
    if nudge is not None:
        last_place = 1e-15 if case.endswith(DOUBLE) else 1e-7
        generator = torch.Generator().manual_seed(nudge)
        for module in (learner.network, *learner.method.modules().values()):
            for weight in module.parameters():
                weight.data *= 1 + last_place * torch.randn(weight.shape, generator=generator)
    if flipped:
        flip(learner, flipped)
    kept = ("t", "phase", "update", "loss", "lr")
    updates = [{name: event[name] for name in kept} for event in updates_of(learner)[:UPDATES]]
    # Some methods make no updates; what they solve shows in their answers.
    return {"updates": updates, "test_loss": learner.counts.loss_sum.sum(1).tolist()}


def flip(learner: Learner, name: str) -> None:
    """Change the sign of a term's weight."""
    losses = learner.method.losses

    def wrong(*arguments: Any) -> list[Any]:
        terms = losses(*arguments)
        return [replace(term, weight=-term.weight) if term.name == name else term for term in terms]

    learner.method.losses = wrong  # type: ignore[method-assign]


def tolerance(change: float, least: float = 1e-5) -> float:
    """Return the relative tolerance of a value of this sensitivity; infinite if it is not compared."""
    allowed = max(least, MARGIN * change)
    return allowed if allowed <= LIMIT else math.inf


def check(case: str, found: dict[str, list[Any]]) -> None:
    """Compare what a case learned with its record."""
    recorded = json.loads((FOLDER / f"{case}.json").read_text())
    changes = json.loads(SENSITIVITY.read_text())[case]
    for was, now, change in zip(recorded["updates"], found["updates"], changes["updates"], strict=True):
        assert [was[name] for name in ("t", "phase", "update")] == [now[name] for name in ("t", "phase", "update")]
        assert was["loss"].keys() == now["loss"].keys()
        assert all(math.isfinite(value) for value in now["loss"].values())
        assert now["lr"] == pytest.approx(was["lr"], rel=1e-9)
        if (allowed := tolerance(change)) <= LIMIT:
            assert now["loss"] == pytest.approx(was["loss"], rel=allowed, abs=ZERO)
    assert all(math.isfinite(value) for value in found["test_loss"])
    assert sum(found["test_loss"]) > 0
    if (allowed := tolerance(changes["test_loss"], 1e-4)) <= LIMIT:
        assert found["test_loss"] == pytest.approx(recorded["test_loss"], rel=allowed)


def test_every_method_has_golden_losses():
    assert {method for method, _ in CASES.values()} == set(METHODS)
    assert {path.stem for path in FOLDER.glob("*.json")} == set(CASES) == set(json.loads(SENSITIVITY.read_text()))


@pytest.mark.parametrize("case", CASES)
def test_the_first_updates_are_as_recorded(blobs, case):
    check(case, learned(blobs, case))


def test_every_update_is_compared_in_the_case_or_in_its_twin():
    changes = json.loads(SENSITIVITY.read_text())
    for case in CASES:
        updates, test_loss = changes[case]["updates"], changes[case]["test_loss"]
        assert all(tolerance(change) < 1e-4 for change in updates[:1])
        if max(tolerance(change) for change in (*updates, test_loss)) > LIMIT:
            twin = changes[case + DOUBLE]
            assert all(tolerance(change) == 1e-5 for change in (*twin["updates"], twin["test_loss"]))


@pytest.mark.parametrize("case", WEIGHTED)
def test_a_wrong_sign_is_found(blobs, case):
    found = learned(blobs, case, flipped=WEIGHTED[case])
    with pytest.raises(AssertionError):
        check(case, found)


def record(manifest: Path, cases: list[str]) -> None:
    """Write the golden losses of some cases."""
    FOLDER.mkdir(exist_ok=True)
    for case in cases:
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


def measure_sensitivity(manifest: Path, cases: list[str]) -> None:
    """Write the sensitivity of some cases; the others keep theirs."""
    known = json.loads(SENSITIVITY.read_text()) if SENSITIVITY.exists() else {}
    known |= {case: sensitivity(manifest, case) for case in cases}
    lines = [f"{json.dumps(case)}: {json.dumps(known[case])}" for case in CASES]
    SENSITIVITY.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    work, names = (measure_sensitivity, sys.argv[2:]) if sys.argv[1:2] == ["sensitivity"] else (record, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        work(write_blobs(Path(folder)), names or list(CASES))
