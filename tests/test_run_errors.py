"""Damaged checkpoints, folders that are taken and disks that are full: said in a sentence, and nothing is lost."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dietcl.cli.main import main
from dietcl.engine.checkpoint_files import Checkpoints
from dietcl.errors import Stopped, UserError
from dietcl.files import locked
from helpers.runs import outcome, run, signal_at, small
from helpers.tiny import tiny_config

# A damaged checkpoint of a run.


def interrupted(config, folder):
    with pytest.raises(Stopped):
        run(config, folder, signal_at(signal.SIGTERM, 2, 0.6), checkpoint_every=1)
    return sorted((folder / "checkpoints").glob("0*"))


@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_the_checkpoint_before_a_damaged_one_leads_to_the_same_end(config, uninterrupted, tmp_path, damage):
    _, newest = interrupted(config, tmp_path / "run")
    newest.write_bytes(damage(newest.read_bytes()))
    said = []
    run(config, tmp_path / "run", notify=said.append)
    assert newest.name in said[0]
    assert "the checkpoint before it is used" in said[0]
    assert "resuming in time step 2, after update 1" in said[1]
    assert outcome(tmp_path / "run") == uninterrupted


def test_without_any_whole_checkpoint_a_run_is_refused_and_nothing_is_lost(config, tmp_path):
    for path in interrupted(config, tmp_path / "run"):
        path.write_bytes(b"torn")
    events = (tmp_path / "run/events.jsonl").read_bytes()
    for _ in range(2):  # the refusal changes nothing
        with pytest.raises(UserError, match=r"checkpoints: none of the checkpoints is intact.*--fresh"):
            run(config, tmp_path / "run")
    assert (tmp_path / "run/events.jsonl").read_bytes() == events


def test_a_checkpoint_of_another_network_is_refused(config, tmp_path, blobs):
    interrupted(config, tmp_path / "run")
    other = tiny_config(blobs, "cassle", budget="9")
    with pytest.raises(Stopped):
        run(other, tmp_path / "other", signal_at(signal.SIGTERM, 1, 0.3))
    for path in (tmp_path / "other/checkpoints").iterdir():
        path.unlink()
    for path in (tmp_path / "run/checkpoints").iterdir():
        (tmp_path / "other/checkpoints" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UserError, match="is complete but does not fit this run"):
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
    with pytest.raises(UserError, match=rf"run: process {holder.pid} on .* is writing to it"):
        run(config, tmp_path / "run")
    with pytest.raises(UserError, match="is writing to it"):
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

    monkeypatch.setattr("filelock._unix.fcntl.flock", refuse)
    said = []
    with locked(tmp_path, said.append):
        pass
    assert said == [
        f"{tmp_path}: cannot be locked ({os.strerror(number)}); make sure that no other process writes to it"
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
from helpers.runs import nothing
from helpers.tiny import tiny_config
from dietcl.errors import UserError
from dietcl.run import execute
from dietcl.execution import Execution

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
    execute(config, disk / "run", Execution(device="cpu", checkpoint_every=1), progress=fill)
except UserError as error:
    print(error)
    print(sorted(path.name for path in (disk / "run/checkpoints").iterdir()))
    ballast.unlink()
    said = []
    execute(config, disk / "run", Execution(device="cpu", checkpoint_every=1), notify=said.append)
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
    assert sentence.startswith(f"{disk / 'run'}: cannot be written (No space left on device); free some space")
    assert len(json.loads(kept.replace("'", '"'))) == 2  # two whole ones, and nothing half written
    assert "resuming in time step 2, after update" in said
    assert outcome(tmp_path / "copy") == uninterrupted


QUOTA = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
from dietcl.cli.main import main
raise SystemExit(main(sys.argv[1:]))
"""


def test_a_quota_ends_in_a_sentence(blobs, tmp_path):
    arguments = ["train", "--method", "dietcl", *small(blobs), "--out", str(tmp_path / "run"), "--device", "cpu"]
    result = subprocess.run([sys.executable, "-c", QUOTA, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    assert "cannot be written (File too large); free some space" in result.stderr
    assert "Traceback" not in result.stderr
    assert main(arguments) == 0
