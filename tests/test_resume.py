"""A run that was stopped anywhere goes on to the same end, bit for bit."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save

import dietcl.run
import dietcl.run_folder
from dietcl.engine.checkpoint_files import Checkpoints
from dietcl.engine.loop import learn
from dietcl.engine.state import restore_state, save_state
from dietcl.errors import UserError
from dietcl.files import LOCK
from dietcl.report.page import write_report
from dietcl.run_folder import is_finished
from helpers.recording import hand_over
from helpers.runs import interrupt, outcome, run
from helpers.tiny import tiny_config, tiny_learner, write_blobs


@pytest.mark.parametrize(("t", "fraction"), [(1, 0.3), (2, 0.3), (3, 0.3), (3, 1.0)])
def test_an_interrupted_run_ends_as_if_it_had_not_been(config, uninterrupted, tmp_path, t, fraction):
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", interrupt(t, fraction))
    assert not is_finished(tmp_path / "run")
    begun = []
    run(config, tmp_path / "run", lambda t, fraction: begun.append(t))
    assert min(begun) == t  # what was finished is not learned again
    assert outcome(tmp_path / "run") == uninterrupted


def test_a_run_that_goes_on_with_other_threads_says_so(config, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", interrupt(2, 0.3))
    path, said = tmp_path / "run/environment.json", []
    path.write_text(json.dumps(json.loads(path.read_text()) | {"threads": 7}))
    run(config, tmp_path / "run", notify=said.append)
    assert f"{tmp_path / 'run'}: was begun with threads 7, so results will differ in rounding" in said


def test_a_run_without_its_checkpoints_says_that_it_starts_over(config, uninterrupted, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", interrupt(2, 0.3))
    shutil.rmtree(tmp_path / "run/checkpoints")
    said = []
    run(config, tmp_path / "run", notify=said.append)
    assert f"{tmp_path / 'run'}: was begun, but has no checkpoint, so it starts over" in said
    assert outcome(tmp_path / "run") == uninterrupted


def as_of_version_0_1(folder: Path) -> None:
    """Rewrite the checkpoints of a folder with the names of version 0.1, which kept no counts by class."""
    for path in (folder / "checkpoints").glob("0*.safetensors"):
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys() if not name.startswith("class_counts/")}  # noqa: SIM118
            notes = file.metadata()
        old = json.loads(notes["notes"])
        old["journal"] = old.pop("event_log")
        old["position"]["step"]["stretch"] = old["position"]["step"].pop("segment")
        data = save(tensors, {**notes, "notes": json.dumps(old)})
        path.unlink()
        digest = hashlib.sha256(data).hexdigest()[:32]
        path.with_name(f"{path.stem.rpartition('-')[0]}-{digest}.safetensors").write_bytes(data)


def test_a_run_of_version_0_1_is_resumed_to_the_same_bits(config, uninterrupted, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", interrupt(1, 0.6), checkpoint_every=1, keep_checkpoints=1)
    as_of_version_0_1(tmp_path / "run")
    said = []
    run(config, tmp_path / "run", notify=said.append)
    assert f"{tmp_path / 'run'}: resuming in time step 1, after update 1" in said
    assert outcome(tmp_path / "run") == uninterrupted


def test_a_run_may_be_interrupted_again_and_again(config, uninterrupted, tmp_path):
    for t in (1, 1, 2, 3):
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "run", interrupt(t, 0.6))
    run(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == uninterrupted


CHILD = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from pathlib import Path
from helpers.tiny import tiny_config
from dietcl.execution import Execution
from dietcl.run import execute

def progress(t, fraction):
    if t == 2 and fraction > 0.5:
        os.kill(os.getpid(), signal.SIGKILL)

config = tiny_config(Path(sys.argv[2]), "dietcl", budget="3", threshold="2.0")
execute(config, Path(sys.argv[3]), Execution(device="cpu"), progress=progress)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_killed_process_loses_only_its_unfinished_time_step(config, blobs, uninterrupted, tmp_path):
    tests = str(Path(__file__).parent)
    arguments = [sys.executable, "-c", CHILD, tests, str(blobs), str(tmp_path / "run")]
    child = subprocess.run(arguments, env=os.environ, capture_output=True, text=True, check=False)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert (tmp_path / "run/events.jsonl").read_text().count("step_end") == 1
    run(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == uninterrupted


def test_a_finished_run_is_left_as_it_is(config, uninterrupted, tmp_path, monkeypatch):
    run(config, tmp_path / "run")
    monkeypatch.setattr(dietcl.run, "assemble", None)
    run(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == uninterrupted


def test_fresh_starts_over(config, uninterrupted, tmp_path):
    other = replace(config, seed=5)
    with pytest.raises(KeyboardInterrupt):
        run(other, tmp_path / "run", interrupt(2, 0.5))
    run(config, tmp_path / "run", fresh=True)
    assert outcome(tmp_path / "run") == uninterrupted


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: replace(c, seed=1), ["seed"]),
        (lambda c: replace(c, budget="4"), ["budget"]),
        (lambda c: replace(c, budget="4", seed=1), ["budget", "seed"]),
        (lambda c: replace(c, training=replace(c.training, lr=1e-5)), ["training"]),
        (lambda c: replace(c, method_config=replace(c.method_config, alpha=1.0)), ["method_config"]),
    ],
)
def test_another_configuration_in_the_folder_is_refused_and_its_differences_named(config, tmp_path, change, named):
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", interrupt(1, 0.3))
    before = (tmp_path / "run/config.json").read_text()
    with pytest.raises(UserError, match=".*".join(named)) as refusal:
        run(change(config), tmp_path / "run")
    assert str(tmp_path / "run") in str(refusal.value)
    assert not any(name in str(refusal.value) for name in {"seed", "budget", "recipe", "model"} - set(named))
    assert (tmp_path / "run/config.json").read_text() == before


def test_a_checkpoint_before_any_label_can_be_loaded(config, tmp_path):
    stream = tiny_learner(config).stream
    none = np.zeros(0, np.int64)
    first = replace(stream.steps[0], labeled=none, labels=none, seen_classes=0, new_classes=())
    late = replace(stream, steps=(first, *stream.steps[1:]))
    learner, resumed = tiny_learner(config, late), tiny_learner(config, late)
    next(learn(learner))
    hand_over(learner, resumed, tmp_path / "checkpoint")
    assert resumed.network.head.classes == 0


def test_a_checkpoint_without_counts_by_class_can_be_loaded(config, tmp_path):
    learner, resumed = tiny_learner(config), tiny_learner(config)
    learning = learn(learner)
    next(learning)
    checkpoints = Checkpoints(tmp_path / "checkpoint", keep=1)
    save_state(learner, checkpoints, event_log=0)
    saved, _ = checkpoints.load()
    older = {name: value for name, value in saved.tensors.items() if not name.startswith("class_counts/")}
    assert len(older) < len(saved.tensors)
    restore_state(resumed, replace(saved, tensors=older))
    for _ in (*learning, *learn(resumed)):
        pass
    assert not resumed.class_counts.total[0].any()  # was not measured
    assert (resumed.class_counts.total[1:] == learner.class_counts.total[1:]).all()
    assert resumed.class_counts.count.tolist() == learner.class_counts.count.tolist()


# Where a run was stopped after its last time step, or its stream was changed.


def test_a_run_stopped_before_its_last_results_were_written_still_gets_them(
    config, uninterrupted, tmp_path, monkeypatch
):
    save = dietcl.run.save_results

    def stop_at_the_end(learner, folder):
        if len(learner.ledger.closed) == 3:
            raise KeyboardInterrupt
        save(learner, folder)

    monkeypatch.setattr(dietcl.run, "save_results", stop_at_the_end)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run")
    monkeypatch.undo()
    run(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == uninterrupted


def test_a_stream_that_changed_meanwhile_is_refused(tmp_path):
    config = tiny_config(write_blobs(tmp_path / "blobs"), "naive", budget="1")
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", interrupt(2, 0.5))
    write_blobs(tmp_path / "blobs", per_class=25)
    with pytest.raises(UserError, match="stream"):
        run(config, tmp_path / "run")


def test_fresh_removes_nothing_before_the_new_run_can_start(config, tmp_path):
    run(replace(config, budget="1"), tmp_path / "run")
    before = outcome(tmp_path / "run")
    with pytest.raises(UserError, match="nowhere"):
        run(replace(config, weights="nowhere.pth"), tmp_path / "run", fresh=True)
    assert outcome(tmp_path / "run") == before


def test_a_crash_while_emptying_the_folder_leaves_nothing_that_another_run_could_take_for_its_own(
    config, tmp_path, monkeypatch
):
    run(config, tmp_path / "run")
    other = replace(config, seed=5)
    removed = []

    def crash(path, **_):
        removed.append(path)
        raise OSError("killed")

    monkeypatch.setattr(dietcl.run_folder.shutil, "rmtree", crash)
    with pytest.raises(OSError, match="killed"):
        run(other, tmp_path / "run", fresh=True)
    monkeypatch.undo()
    assert removed == [tmp_path / "run/checkpoints"]
    assert not is_finished(tmp_path / "run")
    with pytest.raises(UserError, match="seed"):
        run(other, tmp_path / "run")


@pytest.mark.parametrize("left", ["finished", "checkpoints"])
def test_a_run_without_its_configuration_is_not_continued(config, tmp_path, left):
    run(config, tmp_path / "run")
    for name in {"config.json", "finished"} - {left}:
        (tmp_path / "run" / name).unlink()
    with pytest.raises(UserError, match=r"without its config\.json"):
        run(config, tmp_path / "run")


def test_fresh_leaves_what_others_put_beside_the_run(config, uninterrupted, tmp_path):
    precious = tmp_path / "run/notes/thesis.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("years of work")
    run(replace(config, seed=5, budget="1"), tmp_path / "run")
    run(config, tmp_path / "run", fresh=True)
    assert precious.read_text() == "years of work"
    assert outcome(tmp_path / "run") == uninterrupted


def test_every_file_of_a_run_is_known_to_whoever_empties_it(config, tmp_path):
    run(config, tmp_path / "run")
    write_report([tmp_path / "run"], tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} <= {*dietcl.run_folder._OWN, LOCK}


def test_fresh_never_removes_a_folder_that_is_no_run(config, tmp_path):
    precious = tmp_path / "home/thesis.txt"
    precious.parent.mkdir()
    precious.write_text("years of work")
    with pytest.raises(UserError, match="home"):
        run(config, tmp_path / "home", fresh=True)
    assert precious.read_text() == "years of work"


def test_a_run_says_what_it_does(config, tmp_path):
    said = []
    run(config, tmp_path / "run", notify=said.append)
    assert said == []
    run(config, tmp_path / "run", notify=said.append)
    assert said == [f"{tmp_path / 'run'}: finished before, so nothing was done"]
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "other", interrupt(2, 0.3))
    run(config, tmp_path / "other", notify=said.append)
    assert said[1:] == [f"{tmp_path / 'other'}: resuming after time step 1"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("weights.safetensors", "mine", r"holds weights\.safetensors, as of a run, without its config\.json"),
        ("events.jsonl", "mine", r"holds events\.jsonl, as of a run"),
        ("config.json", "[1, 2]", r"config\.json: is not a run configuration"),
        (
            "config.json",
            '{"model_type": "bert"}',
            r"holds a config\.json that is not a run configuration|is not a run folder",
        ),
    ],
)
def test_files_of_somebody_else_are_not_overwritten(config, tmp_path, name, content, sentence):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text(content)
    for fresh in (False, True):
        with pytest.raises(UserError, match="not a run folder" if fresh and name != "config.json" else sentence):
            run(config, tmp_path / "run", fresh=fresh)
    assert (tmp_path / "run" / name).read_text() == content


def test_checkpoints_may_lie_on_another_disk(config, uninterrupted, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", interrupt(2, 0.3))
    shutil.move(tmp_path / "run/checkpoints", tmp_path / "elsewhere/checkpoints")
    (tmp_path / "run/checkpoints").symlink_to(tmp_path / "elsewhere/checkpoints")
    run(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == uninterrupted
    run(config, tmp_path / "run", fresh=True)
    assert outcome(tmp_path / "run") == uninterrupted
    assert (tmp_path / "elsewhere/checkpoints").is_dir()
