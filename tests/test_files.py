"""Scratch folders: each process has its own, and what killed ones left is removed."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from dietcl.files import scratch


def test_scratch_folders_are_apart_and_gone_afterwards(tmp_path: Path) -> None:
    (tmp_path / ".mine").mkdir()
    with scratch(tmp_path) as one, scratch(tmp_path) as two:
        assert one != two
        (one / "x").write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == [".mine"]


def test_what_a_killed_process_left_goes_and_what_others_use_stays(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from dietcl.files import scratch\n"
        "with scratch(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'large').write_text('x'); print(folder, flush=True); time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    theirs = Path(child.stdout.readline().strip())
    elsewhere = tmp_path / f".scratch-another{socket.gethostname()}-{child.pid}-x"  # a shared disk
    elsewhere.mkdir()
    with scratch(tmp_path):
        assert (theirs / "large").exists()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    with scratch(tmp_path):
        assert not theirs.exists()
        assert elsewhere.exists()
