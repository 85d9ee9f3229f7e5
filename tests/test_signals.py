"""Runs that are asked to stop, and how often runs are saved."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from dietcl.cli.main import main
from dietcl.engine.checkpoint_files import Checkpoints
from dietcl.engine.distributed import World
from dietcl.engine.evaluator import Evaluator
from dietcl.engine.loop import advance
from dietcl.engine.state import save_state
from dietcl.errors import NotFinite, Stopped
from dietcl.execution import Execution
from dietcl.signals import STOPPED, listening
from helpers.runs import outcome, run, signal_at, small
from helpers.tiny import tiny_learner


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("t", "fraction"), [(1, 0.3), (2, 0.6), (2, 1.0)])
def test_a_signal_finishes_the_update_and_saves(config, uninterrupted, tmp_path, number, t, fraction):
    before = signal.getsignal(number)
    with pytest.raises(Stopped, match="run the same command to resume"):
        run(config, tmp_path / "run", signal_at(number, t, fraction))
    assert signal.getsignal(number) == before
    begun = []
    run(config, tmp_path / "run", lambda t, share: begun.append((t, share)))
    assert begun[0] > (t, fraction)  # the update under way was saved
    assert outcome(tmp_path / "run") == uninterrupted


def test_a_signal_during_an_evaluation_lets_it_end(config, uninterrupted, tmp_path, monkeypatch):
    measure, rows = Evaluator.measure, []

    def watch(self, method, net, counts, row, until, **options):
        rows.append(row)
        if row in (1, 2) and rows.count(row) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        measure(self, method, net, counts, row, until, **options)

    monkeypatch.setattr(Evaluator, "measure", watch)
    with pytest.raises(Stopped):
        run(config, tmp_path / "run")
    run(config, tmp_path / "run")  # asked to stop during the last one, it is done anyway
    assert rows == [0, 1, 2]
    assert outcome(tmp_path / "run") == uninterrupted


def test_ctrl_c_stops_at_once_after_the_first_signal_and_sigterm_never():
    for first in (signal.SIGINT, signal.SIGTERM):
        world, said = World(), []
        with listening(world, said.append):
            os.kill(os.getpid(), first)
            assert world.was_asked
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert said == ["stopping after this update; Ctrl-C (once more) stops at once"]


def test_a_time_limit_stops_and_the_same_command_goes_on(config, uninterrupted, tmp_path):
    stops = 0
    while True:
        try:
            # Already over when the first update ends: one update a turn.
            run(config, tmp_path / "run", stop_after="0.001s")
        except Stopped:
            stops += 1
        else:
            break
    assert stops == 3 * (3 + 1) + 2  # after every update, before every evaluation, after all of them but the last
    assert outcome(tmp_path / "run") == uninterrupted


def test_the_command_line_tells_by_its_code_that_a_run_was_stopped(blobs, tmp_path, capfd):
    arguments = ["train", "--method", "dietcl", *small(blobs), "--out", str(tmp_path / "run"), "--device", "cpu"]
    for fresh, words in ((["--fresh"], " without --fresh"), ([], "")):
        with pytest.raises(SystemExit) as stop:
            main([*arguments, *fresh, "--stop-after", "0.001s"])
        assert stop.value.code == STOPPED == 75
        assert f"run: saved; run the same command{words} to resume" in capfd.readouterr().err
    assert main([*arguments, "--json"]) == 0
    said = capfd.readouterr()
    assert "resuming in time step 1, after update 2" in said.err
    assert json.loads(said.out)["run"] == str(tmp_path / "run")


@pytest.mark.parametrize("name", ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"])
def test_what_is_started_again_does_not_start_over(blobs, tmp_path, capfd, monkeypatch, name):
    arguments = [
        "train",
        "--method",
        "dietcl",
        *small(blobs),
        "--out",
        str(tmp_path / "run"),
        "--device",
        "cpu",
        "--fresh",
    ]
    with pytest.raises(SystemExit):
        main([*arguments, "--stop-after", "0.001s"])
    monkeypatch.setenv(name, "1")
    assert main(arguments) == 0
    assert "resuming in time step 1, after update 1" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (["--stop-after", "soon"], "--stop-after soon: give a time such as 2h"),
        (["--stop-after", "20"], "--stop-after 20: give a time such as 2h"),
        (["--checkpoint-every", "0"], "--checkpoint-every 0: give at least 1"),
        (["--checkpoint-minutes", "0"], "--checkpoint-minutes 0.0: give a number above 0"),
        (["--keep-checkpoints", "0"], "--keep-checkpoints 0: give at least 1"),
        (["--precision", "bfloat16", "--device", "mps"], "--device mps: not available on this machine"),
    ],
)
def test_wrong_options_get_one_sentence(blobs, tmp_path, capfd, option, sentence):
    assert main(["train", "--method", "dietcl", *small(blobs), "--out", str(tmp_path / "run"), *option]) == 2
    assert sentence in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_times_are_read():
    assert [Execution(stop_after=text).time_limit for text in ("2h", "15min", "90s", "1h30min")] == [
        7200,
        900,
        90,
        5400,
    ]


# How often a run is saved.


def test_checkpoints_come_every_so_many_updates_and_at_the_end_of_a_time_step(config, tmp_path, monkeypatch):
    saved, save = [], Checkpoints.save

    def watch(store, tensors, rare, notes):
        step = notes["position"]["step"]
        saved.append((notes["position"]["finished"], step and step["updates"]))
        save(store, tensors, rare, notes)

    monkeypatch.setattr(Checkpoints, "save", watch)
    run(config, tmp_path / "run", checkpoint_every=2)
    assert saved == [(0, 2), (1, None), (1, 2), (2, None), (2, 2), (3, None)]
    saved.clear()
    run(config, tmp_path / "often", checkpoint_minutes=1e-9)
    updates = [(t, made) for t in range(3) for made in (1, 2, 3, 3)]  # the last one before the evaluation
    assert sorted(saved, key=str) == sorted([*updates, (1, None), (2, None), (3, None)], key=str)


def test_a_run_saves_no_weights_that_are_not_finite(config, tmp_path):
    learner = tiny_learner(config)
    for _ in advance(learner):
        break
    with torch.no_grad():
        learner.network.head.bias[0] = torch.nan
    with pytest.raises(NotFinite, match="time step 1, phase joint, after update 0"):
        save_state(learner, Checkpoints(tmp_path / "checkpoints", 2), 0)
    assert not list(tmp_path.glob("checkpoints/*"))


def test_a_real_process_obeys_sigterm(blobs, tmp_path):
    arguments = [
        "train",
        "--method",
        "dietcl",
        *small(blobs, "--budget", "400"),
        "--out",
        str(tmp_path / "run"),
        "--device",
        "cpu",
    ]
    child = subprocess.Popen([sys.executable, "-m", "dietcl", *arguments], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run/events.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    child.send_signal(signal.SIGTERM)
    _, said = child.communicate(timeout=60)
    assert child.returncode == STOPPED, said
    assert "saved; run the same command to resume" in said
    assert list(tmp_path.glob("run/checkpoints/0*"))
