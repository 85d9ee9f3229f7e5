"""Runs that are asked to stop, find their folder taken, or find no room on the disk."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dietcl.cli import main
from dietcl.engine import snapshot
from dietcl.engine.checkpoint import Checkpoints
from dietcl.engine.evaluate import Evaluator
from dietcl.engine.loop import advance
from dietcl.engine.world import World
from dietcl.errors import NotFinite, Stopped, UserError
from dietcl.files import locked
from dietcl.stopping import STOPPED, Saving, listening, seconds
from test_cli import small
from test_resume import outcome, run
from tiny import tiny_config, tiny_learner


@pytest.fixture(scope="module")
def config(blobs):
    return tiny_config(blobs, "dietcl", budget="3", threshold="2.0")


@pytest.fixture(scope="module")
def uninterrupted(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    run(config, folder)
    return outcome(folder)


def signal_at(number, at_t, at_fraction, sent):
    def progress(t, fraction):
        if t == at_t and fraction >= at_fraction and not sent:
            sent.append((t, fraction))
            os.kill(os.getpid(), number)

    return progress


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("t", "fraction"), [(1, 0.3), (2, 0.6), (2, 1.0)])
def test_a_signal_finishes_the_update_and_saves(config, uninterrupted, tmp_path, number, t, fraction):
    before = signal.getsignal(number)
    with pytest.raises(Stopped, match="the same command goes on"):
        run(config, tmp_path / "run", signal_at(number, t, fraction, []))
    assert signal.getsignal(number) == before
    begun = []
    run(config, tmp_path / "run", lambda t, share: begun.append((t, share)))
    assert begun[0] > (t, fraction)  # the update under way was saved
    assert outcome(tmp_path / "run") == uninterrupted


def test_a_signal_during_an_evaluation_lets_it_end(config, uninterrupted, tmp_path, monkeypatch):
    measure, rows = Evaluator.measure, []

    def watch(self, method, net, counts, row, until):
        rows.append(row)
        if row in (1, 2) and rows.count(row) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        measure(self, method, net, counts, row, until)

    monkeypatch.setattr(Evaluator, "measure", watch)
    with pytest.raises(Stopped):
        run(config, tmp_path / "run")
    run(config, tmp_path / "run")  # asked to stop during the last one, it is done anyway
    assert rows == [0, 1, 2]
    assert outcome(tmp_path / "run") == uninterrupted


def test_the_second_signal_stops_at_once():
    world, said = World(), []
    with listening(world, said.append):
        os.kill(os.getpid(), signal.SIGINT)
        assert world.was_asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert said == ["stopping after this update; once more stops at once"]


def test_a_time_limit_stops_and_the_same_command_goes_on(config, uninterrupted, tmp_path):
    stops = 0
    while True:
        try:
            # Already over when the first update ends: one update a turn.
            run(config, tmp_path / "run", saving=Saving(stop_after=0.0))
        except Stopped:
            stops += 1
        else:
            break
    assert stops == 3 * (3 + 1) + 2  # after every update, before every evaluation, after all of them but the last
    assert outcome(tmp_path / "run") == uninterrupted


def test_the_command_line_tells_by_its_code_that_a_run_was_stopped(blobs, tmp_path, capfd):
    arguments = ["train", *small(blobs), "--out", str(tmp_path / "run"), "--device", "cpu"]
    for fresh, words in ((["--fresh"], " without --fresh"), ([], "")):
        with pytest.raises(SystemExit) as stop:
            main([*arguments, *fresh, "--stop-after", "0.001s"])
        assert stop.value.code == STOPPED == 75
        assert f"run: saved; the same command{words} goes on from here" in capfd.readouterr().err
    assert main([*arguments, "--json"]) == 0
    said = capfd.readouterr()
    assert "going on in time step 1, after update 2" in said.err
    assert json.loads(said.out)["run"] == str(tmp_path / "run")


@pytest.mark.parametrize("name", ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"])
def test_what_is_started_again_does_not_start_over(blobs, tmp_path, capfd, monkeypatch, name):
    arguments = ["train", *small(blobs), "--out", str(tmp_path / "run"), "--device", "cpu", "--fresh"]
    with pytest.raises(SystemExit):
        main([*arguments, "--stop-after", "0.001s"])
    monkeypatch.setenv(name, "1")
    assert main(arguments) == 0
    assert "going on in time step 1, after update 1" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (["--stop-after", "soon"], "--stop-after soon: give a time such as 2h"),
        (["--stop-after", "20"], "--stop-after 20: give a time such as 2h"),
        (["--checkpoint-every", "0"], "--checkpoint-every 0: give at least 1"),
        (["--checkpoint-minutes", "0"], "--checkpoint-minutes 0.0: give a number above 0"),
        (["--keep-checkpoints", "0"], "--keep-checkpoints 0: give at least 1"),
        (["--precision", "bfloat16", "--device", "mps"], "--device mps: not available here"),
    ],
)
def test_wrong_options_get_one_sentence(blobs, tmp_path, capfd, option, sentence):
    assert main(["train", *small(blobs), "--out", str(tmp_path / "run"), *option]) == 2
    assert sentence in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_times_are_read():
    assert [seconds(text) for text in ("2h", "15min", "90s", "1h30min")] == [7200, 900, 90, 5400]


# How often a run is saved.


def test_checkpoints_come_every_so_many_updates_and_at_the_end_of_a_time_step(config, tmp_path, monkeypatch):
    saved, save = [], Checkpoints.save

    def watch(store, tensors, rare, notes):
        step = notes["position"]["step"]
        saved.append((notes["position"]["finished"], step and step["updates"]))
        save(store, tensors, rare, notes)

    monkeypatch.setattr(Checkpoints, "save", watch)
    run(config, tmp_path / "run", saving=Saving(every=2))
    assert saved == [(0, 2), (1, None), (1, 2), (2, None), (2, 2), (3, None)]
    saved.clear()
    run(config, tmp_path / "often", saving=Saving(minutes=1e-9))
    updates = [(t, made) for t in range(3) for made in (1, 2, 3, 3)]  # the last one before the evaluation
    assert sorted(saved, key=str) == sorted([*updates, (1, None), (2, None), (3, None)], key=str)


def test_a_run_saves_no_weights_that_are_not_finite(config, tmp_path):
    learner = tiny_learner(config)
    for _ in advance(learner):
        break
    with torch.no_grad():
        learner.network.head.bias[0] = torch.nan
    with pytest.raises(NotFinite, match="time step 1, phase joint, after update 0"):
        snapshot.save(learner, Checkpoints(tmp_path / "checkpoints", 2), 0)
    assert not Checkpoints(tmp_path / "checkpoints", 2)


# A damaged checkpoint of a run.


def interrupted(config, folder):
    with pytest.raises(Stopped):
        run(config, folder, signal_at(signal.SIGTERM, 2, 0.6, []), saving=Saving(every=1))
    return sorted((folder / "checkpoints").glob("0*"))


@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_the_checkpoint_before_a_damaged_one_leads_to_the_same_end(config, uninterrupted, tmp_path, damage):
    _, newest = interrupted(config, tmp_path / "run")
    newest.write_bytes(damage(newest.read_bytes()))
    said = []
    run(config, tmp_path / "run", say=said.append)
    assert newest.name in said[0]
    assert "the checkpoint before it is used" in said[0]
    assert "going on in time step 2, after update 1" in said[1]
    assert outcome(tmp_path / "run") == uninterrupted


def test_without_any_whole_checkpoint_a_run_is_refused_and_nothing_is_lost(config, tmp_path):
    for path in interrupted(config, tmp_path / "run"):
        path.write_bytes(b"torn")
    events = (tmp_path / "run/events.jsonl").read_bytes()
    for _ in range(2):  # the refusal changes nothing
        with pytest.raises(UserError, match=r"checkpoints: none of the checkpoints is whole.*--fresh"):
            run(config, tmp_path / "run")
    assert (tmp_path / "run/events.jsonl").read_bytes() == events


def test_a_checkpoint_of_another_network_is_refused(config, tmp_path, blobs):
    interrupted(config, tmp_path / "run")
    other = tiny_config(blobs, "cassle", budget="9")
    with pytest.raises(Stopped):
        run(other, tmp_path / "other", signal_at(signal.SIGTERM, 1, 0.3, []))
    for path in (tmp_path / "other/checkpoints").iterdir():
        path.unlink()
    for path in (tmp_path / "run/checkpoints").iterdir():
        (tmp_path / "other/checkpoints" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UserError, match="is whole but does not fit this run"):
        run(other, tmp_path / "other")


# Two processes, one folder.


HOLDER = """
import sys, time
from pathlib import Path
from dietcl.files import locked
with locked(Path(sys.argv[1]), print):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_second_process_is_refused_until_the_first_has_died(config, uninterrupted, tmp_path):
    (tmp_path / "run").mkdir()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=rf"run: process {holder.pid} on .* is at work in it"):
        run(config, tmp_path / "run")
    with pytest.raises(UserError, match="is at work in it"):
        run(config, tmp_path / "run", fresh=True)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
    holder.kill()
    holder.communicate()
    run(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == uninterrupted


def test_a_lock_ends_with_its_block(tmp_path):
    with locked(tmp_path, print), pytest.raises(UserError), locked(tmp_path, print):
        pass
    with locked(tmp_path, print):
        pass


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_of(tmp_path, monkeypatch, number):
    def refuse(file, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("dietcl.files.fcntl.flock", refuse)
    said = []
    with locked(tmp_path, said.append):
        pass
    assert said == [
        f"{tmp_path}: cannot be locked ({os.strerror(number)}), so make sure that no other process works in it"
    ]


def test_a_folder_that_may_not_be_written_is_one_sentence(config, tmp_path, monkeypatch):
    def refuse(self, *_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Checkpoints, "save", refuse)
    with pytest.raises(UserError, match=r"cannot be written \(Permission denied\); make it writable"):
        run(config, tmp_path / "run")


# A full disk, on a small real file system.

FULL = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from pathlib import Path
from test_resume import nothing
from tiny import tiny_config
from dietcl.errors import UserError
from dietcl.run import execute
from dietcl.stopping import Saving

config = tiny_config(Path(sys.argv[2]), "dietcl", budget="3", threshold="2.0")
disk = Path(sys.argv[3])
ballast = disk / "ballast"
ballast.write_bytes(bytes(int(sys.argv[4])))

def fill(t, fraction):
    if t == 2 and fraction > 0.5:  # somebody else fills what is left
        with ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

try:
    execute(config, disk / "run", device="cpu", progress=fill, saving=Saving(every=1))
except UserError as error:
    print(error)
    print(sorted(path.name for path in (disk / "run/checkpoints").iterdir()))
    ballast.unlink()
    said = []
    execute(config, disk / "run", device="cpu", progress=nothing, say=said.append, saving=Saving(every=1))
    print(said)
    import shutil
    shutil.copytree(disk / "run", sys.argv[5])
else:
    print("was not full")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="makes a small file system in a name space of its own")
def test_a_full_disk_ends_in_a_sentence_and_loses_only_the_updates_since_the_last_checkpoint(
    blobs, uninterrupted, tmp_path
):
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "full.py").write_text(FULL)
    tests = str(Path(__file__).parent)
    arguments = [tests, str(blobs), str(disk), str(8 * 2**20), str(tmp_path / "copy")]
    command = f'mount -t tmpfs -o size=24m tmpfs "{disk}" && exec "$0" "$@"'
    # Root of its own name space alone: the file system is there for this process and gone with it.
    shell = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", command, sys.executable]
    result = subprocess.run(
        [*shell, str(tmp_path / "full.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    sentence, kept, said = result.stdout.splitlines()
    assert sentence.startswith(f"{disk / 'run'}: cannot be written (No space left on device); make room")
    assert len(json.loads(kept.replace("'", '"'))) == 2  # two whole ones, and nothing half written
    assert "going on in time step 2, after update" in said
    assert outcome(tmp_path / "copy") == uninterrupted


QUOTA = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
from dietcl.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


def test_a_quota_ends_in_a_sentence(blobs, tmp_path):
    arguments = ["train", *small(blobs), "--out", str(tmp_path / "run"), "--device", "cpu"]
    result = subprocess.run([sys.executable, "-c", QUOTA, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    assert "cannot be written (File too large); make room" in result.stderr
    assert "Traceback" not in result.stderr
    assert main(arguments) == 0


def test_a_real_process_obeys_sigterm(blobs, tmp_path):
    arguments = ["train", *small(blobs, "--budget", "400"), "--out", str(tmp_path / "run"), "--device", "cpu"]
    child = subprocess.Popen([sys.executable, "-m", "dietcl", *arguments], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run/events.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    child.send_signal(signal.SIGTERM)
    _, said = child.communicate(timeout=60)
    assert child.returncode == STOPPED, said
    assert "saved; the same command goes on from here" in said
    assert Checkpoints(tmp_path / "run/checkpoints", 2)
