"""A run that is killed anywhere goes on to the same end, bit for bit, whatever its method.

A few real kills here; `python -m benchmarks resume` makes hundreds.
"""

import re
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.kills import CLOCK, MOMENTS, Shot, differences, outcome, start, wait
from benchmarks.resume import CASES as KILLED
from benchmarks.resume import hunt, make_configs
from dietcl.config import Evaluation, RunConfig
from dietcl.engine.checkpoint_files import Checkpoints
from dietcl.engine.evaluator import ClassCounts, Counts
from dietcl.engine.learner import Learner
from dietcl.engine.loop import advance
from dietcl.engine.state import restore_state, save_state
from dietcl.methods import METHODS, every_method, method_config
from dietcl.run_folder import is_finished
from helpers.marks import mostly_long
from helpers.recording import Event, Notes
from helpers.tiny import AMPLE, tiny_config, tiny_learner

can_kill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
HUNTED = ("dietcl", "ewc", "dualnet", "ranpac", "larder", "larder, frozen")
AIMED = "derpp"  # has updates, sweeps and a state of its own


# Real processes.


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    made = make_configs(tmp_path_factory.mktemp("streams"), [*HUNTED, AIMED])
    return {name: replace(config, budget="4") for name, config in made.items()}


@pytest.fixture(scope="module")
def undisturbed(configs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert wait(start(configs[AIMED], folder, Shot(every=100))) == 0
    return outcome(folder)


def test_the_benchmark_kills_every_method():
    assert {re.split("[,:]", case)[0] for case in KILLED} == set(METHODS)


@pytest.mark.long
@can_kill
@pytest.mark.parametrize("case", HUNTED)
def test_runs_that_are_killed_again_and_again_end_as_if_they_had_not_been(configs, tmp_path, case):
    found = hunt(case, configs[case], 3, tmp_path / "runs")
    assert found.kills.total() == 3
    assert not found.different


@pytest.mark.long
@can_kill
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_at_the_worst_moment_does_no_harm(configs, undisturbed, tmp_path, moment):
    shot = Shot(every=1, aim=(moment, 2))  # the second time finds more to damage
    assert wait(start(configs[AIMED], tmp_path / "run", shot)) == -signal.SIGKILL
    assert not is_finished(tmp_path / "run")
    assert wait(start(configs[AIMED], tmp_path / "run", Shot(every=1))) == 0
    assert not differences(outcome(tmp_path / "run"), undisturbed)


# Every method, within this process.

OPTIONS: dict[str, dict[str, object]] = {
    "dietcl": {"threshold": "2.0"},
    "dietcl:labeled": {"threshold": "2.0"},
    "dietcl:unbroken": {"threshold": "2.0"},
    "ewc, online": {"online": True, "decay": 0.5},
    "l2p, unfrozen": {"frozen": False},
    "ranpac, few features": {"random_features": 5},
    "ranpac:frozen, starved": {"random_features": 10_000},
}
CASES = [*every_method(), *(name for name in OPTIONS if "," in name), "dietcl, curves", "derpp, flops"]


def tiny_case(blobs: Path, case: str) -> RunConfig:
    """Return the configuration of a method, of a variant, or of a method with some options."""
    name = case.partition(",")[0]
    base = name.partition(":")[0]
    plain = vars(method_config(base))
    variant = {option: value for option, value in vars(method_config(name)).items() if value != plain[option]}
    budget = AMPLE.get(base, "3" if base == "dietcl" else "2")
    config = tiny_config(blobs, base, budget=budget, **variant | OPTIONS.get(case, {}))
    if case.endswith("curves"):
        return replace(config, evaluation=Evaluation(curves=1))
    if case.endswith("starved"):  # a sweep that must leave something for the solve
        return replace(config, budget="0.25")
    return replace(config, accounting="flops") if case.endswith("flops") else config


def everything(learner: Learner) -> dict[str, Any]:
    """Return all that a run leaves behind and all that it would go on from."""
    modules = {f"{name}.{key}": v for name, m in learner.method.modules().items() for key, v in m.state_dict().items()}
    return {
        "weights": bits(learner.network.state_dict()),
        "modules": bits(modules),
        "state": bits(learner.method.state()),
        "counts": arrays(learner.counts),
        "class counts": arrays(learner.class_counts),
        "receipts": learner.ledger.receipts(),
    }


def arrays(counts: Counts | ClassCounts) -> dict[str, tuple[object, ...]]:
    return {name: (values.dtype, values.shape, values.tobytes()) for name, values in vars(counts).items()}


def bits(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[object, ...]]:
    return {name: (value.dtype, value.shape, value.detach().numpy().tobytes()) for name, value in tensors.items()}


def happened(events: list[Event]) -> list[Event]:
    return [{name: value for name, value in event.items() if name not in CLOCK} for event in events]


@pytest.mark.parametrize("case", mostly_long(CASES, {"dietcl", "derpp, flops", "ranpac:frozen, starved"}))
def test_every_method_goes_on_from_every_kind_of_moment(blobs, tmp_path, case):
    config = tiny_case(blobs, case)
    whole = tiny_learner(config)
    whole.recorder = notes = Notes()
    saved: list[tuple[Path, int]] = []
    met: Counter[object] = Counter()
    for moment in advance(whole):
        here = whole.position.step
        kind = (whole.position.finished, moment, here and len(here.done))
        met[kind] += 1
        # The first of each phase and sweep, the end of each time step, and some of the others.
        if met[kind] == 1 or met.total() % 11 == 0:
            saved.append((tmp_path / str(len(saved)), len(notes.events)))
            save_state(whole, Checkpoints(saved[-1][0], keep=2), event_log=saved[-1][1])
    assert {"learned", "step"} < {moment for _, moment, _ in met}
    end = everything(whole)
    # A checkpoint restores values, not strides, by which some processors round products otherwise.
    assert [name for name, value in whole.method.state().items() if not value.is_contiguous()] == []
    for folder, before in saved:
        learner = tiny_learner(config)
        learner.recorder = rest = Notes()
        found, damages = Checkpoints(folder, keep=2).load()
        assert found is not None
        assert not damages
        assert restore_state(learner, found) == before
        for _ in advance(learner):
            pass
        assert everything(learner) == end
        assert happened(rest.events) == happened(notes.events[before:])
