"""Several processes learn one run to the same end, bit for bit, and none of them waits for one that is gone."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from dietcl.cli.main import main
from dietcl.engine import distributed, phases
from dietcl.engine.distributed import World
from dietcl.engine.gradients import Gradients
from dietcl.errors import Lost, Stopped
from dietcl.execution import Execution
from dietcl.launch import ranks
from dietcl.methods import every_method
from dietcl.run import execute
from helpers.distributed_runs import command_line, config_of, die_once, free_port, launch, together, watch
from helpers.photos import write_photos
from helpers.runs import outcome, small

# Odd budgets end amid an update or a sweep; curves evaluate within a time step.
TASKS = [
    *({"method": method} for method in every_method() if ":" not in method),
    {"method": "dualnet", "budget": "7.7", "curves": 2},
    {"method": "ranpac", "budget": "0.7"},
    {"method": "acm", "budget": "0.06"},
    {"method": "ewc", "budget": "1.4", "options": {"online": True}},
    {"method": "derpp", "budget": "2.05"},
    {"method": "dietcl", "budget": "5", "options": {"threshold": "auto"}},
]


def named(tasks, folder):
    return [{**task, "folder": str(folder / f"{number}-{task['method']}")} for number, task in enumerate(tasks)]


@pytest.fixture(scope="module")
def alone(blobs, tmp_path_factory):
    """What every task comes to in this process, and the rows of its micro-batches."""
    folder = tmp_path_factory.mktemp("alone")
    results = {}
    make_batch, threads = phases.make_batch, torch.get_num_threads()
    torch.set_num_threads(1)
    for task in named(TASKS, folder):
        drawn = []
        watch(drawn)
        execute(config_of(blobs, task), Path(task["folder"]), Execution(device="cpu"))
        results[Path(task["folder"]).name] = (outcome(Path(task["folder"])), {tuple(key): rows for key, rows in drawn})
    phases.make_batch = make_batch
    torch.set_num_threads(threads)
    return results


# Three share out micro-batches unevenly, which is no business of a method.
@pytest.mark.parametrize(("size", "first"), [(2, 0), (3, -6)])
@pytest.mark.long
def test_the_number_of_processes_changes_no_bit(blobs, tmp_path, alone, size, first):
    tasks = named(TASKS, tmp_path)[first:]
    together(size, blobs, tasks)
    for task in tasks:
        folder = Path(task["folder"])
        expected, rows = alone[folder.name]
        assert outcome(folder) == expected, folder.name
        if "threshold" in task.get("options", {}):
            continue  # the trials of the search draw by the same keys
        notes = [json.loads((tmp_path / f"{folder.name}.rows-{rank}.json").read_text()) for rank in range(size)]
        by_rank = [drawn for drawn, _ in notes]
        for rank, (_, loaded) in enumerate(notes):  # each reads only what it needs
            assert all(key[-1] % size == rank for key in loaded if key)
        assignment = {tuple(key): (rank, drawn) for rank, entries in enumerate(by_rank) for key, drawn in entries}
        assert len(assignment) == sum(len(entries) for entries in by_rank)  # nobody does what another does
        for key, drawn in rows.items():
            assert assignment[key] == (key[-1] % size, drawn)
        # An update that alone was refused midway is tried as a whole by several.
        assert all(key[:-1] in {known[:-1] for known in rows} for key in assignment.keys() - rows.keys())


@pytest.mark.long
def test_more_processes_than_micro_batches_do_no_harm(blobs, tmp_path, alone):
    task = next(task for task in named(TASKS, tmp_path) if task["method"] == "dualnet")
    together(5, blobs, [task])
    assert outcome(Path(task["folder"])) == alone[Path(task["folder"]).name][0]


@pytest.mark.long
def test_a_run_goes_on_with_any_other_number_of_processes(blobs, tmp_path, alone):
    name = next(name for name in alone if name.endswith("dualnet"))
    task = {"method": "dualnet", "folder": str(tmp_path / name)}
    said = together(3, blobs, [{**task, "stop_after": "0.001s"}] * 5)
    assert all(words.count("stopped") == 5 for words in said)
    assert "resuming in time step 1, after update 4" in said[0]
    with pytest.raises(Stopped):
        execute(config_of(blobs, task), tmp_path / name, Execution(device="cpu", stop_after="0.001s"))
    together(2, blobs, [task])
    assert outcome(tmp_path / name) == alone[name][0]


@pytest.mark.long
def test_a_sweep_goes_on_with_any_other_number_of_processes(blobs, tmp_path):
    task = {"method": "ncm", "micro": 1, "folder": str(tmp_path / "run")}  # eight micro-batches in every time step
    execute(config_of(blobs, task), tmp_path / "alone", Execution(device="cpu"))
    together(2, blobs, [{**task, "stop_after": "0.001s"}])  # after the second two: the wish to stop comes with these
    with pytest.raises(Stopped):
        execute(config_of(blobs, task), tmp_path / "run", Execution(device="cpu", stop_after="0.001s"))
    (last,) = (tmp_path / "run/checkpoints").glob("00000002-*")
    with safe_open(last, "pt") as saved:
        assert json.loads(saved.metadata()["notes"])["position"]["step"]["made"] == 2 + 2 + 1
    together(3, blobs, [task])
    assert outcome(tmp_path / "run") == outcome(tmp_path / "alone")


@pytest.mark.long
def test_images_that_cannot_be_read_are_counted_alike(tmp_path):
    manifest = write_photos(tmp_path / "photos")
    for number, path in enumerate(sorted((tmp_path / "photos").glob("*/*.png"))):
        if number % 3 == 0:
            path.write_bytes(path.read_bytes()[:-60])
    tasks = [task for task in TASKS if task.get("budget") in ("7.7", "0.7", "0.06")]
    together(1, manifest, named(tasks, tmp_path / "1"))
    together(3, manifest, named(tasks, tmp_path / "3"))
    for one, three in zip(named(tasks, tmp_path / "1"), named(tasks, tmp_path / "3"), strict=True):
        found = outcome(Path(three["folder"]))
        assert found == outcome(Path(one["folder"]))
        assert sum(event.get("substituted", 0) for event in found["events"]) > 0


@pytest.mark.long
def test_a_budget_in_seconds_is_spent_together(blobs, tmp_path):
    task = {"method": "dualnet", "budget": "1s", "curves": 2, "folder": str(tmp_path / "run")}
    started = time.monotonic()
    together(2, blobs, [task])
    assert time.monotonic() - started < 120
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    ends = [event for event in events if event["event"] == "step_end"]
    assert len(ends) == 3
    # How much fits into a second depends on what else this machine does; that both processes agree on it does not.
    assert sum(event["updates"] for event in ends) > 0
    assert all(event["spent"] > 0 for event in ends)


# Started by torchrun.


def environment() -> dict[str, str]:
    """Return an environment in which processes find the helpers, too."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def torchrun(size: int, *more: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    return [*launcher, "--nproc-per-node", str(size), "--master-port", str(free_port()), *more]


@pytest.mark.long
def test_torchrun_trains_to_the_same_end_and_tells_it_once(blobs, tmp_path):
    arguments = ["train", "--method", "dietcl", *small(blobs, "--method", "er"), "--threads", "1", "--device", "cpu"]
    command = [*torchrun(2), "-m", "dietcl", *arguments, "--out", str(tmp_path / "two")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("run: ") == 1
    assert outcome(tmp_path / "two") == single(arguments, tmp_path / "one")
    assert json.loads((tmp_path / "two/environment.json").read_text())["processes"] == 2
    children = launch(2, command_line, *arguments, "--seed", "7", "--out", str(tmp_path / "two"))
    said = "".join(child.end(240) for child in children)
    assert all(child.process.exitcode for child in children)
    assert said.count("two: holds a run with another seed (0 in the folder, 7 requested)") == 1
    assert "Traceback" not in said


def dying(blobs, tmp_path, mode):
    """Return the arguments of `die_once`, and those of the same run without a death."""
    arguments = [
        "train",
        "--method",
        "dietcl",
        *small(blobs, "--method", "er", "--budget", "6"),
        "--threads",
        "1",
        "--device",
        "cpu",
    ]
    arguments += ["--checkpoint-every", "2"]
    return [str(tmp_path), mode, *arguments, "--out", str(tmp_path / "run")], arguments


def single(arguments, folder):
    """Return what the same run comes to in one process."""
    assert main([*arguments, "--out", str(folder)]) == 0
    return outcome(folder)


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [("kill", -9, ""), ("raise", 1, "ZeroDivisionError: of its own mind"), ("refuse", 2, "dietcl: the disk is full\n")],
)
def test_no_process_waits_for_one_that_has_died(blobs, tmp_path, mode, code, words):
    arguments, _ = dying(blobs, tmp_path, mode)
    children = launch(2, die_once, *arguments)
    dead, alive = children if mode == "refuse" else children[::-1]
    try:
        assert words in dead.end(240)
        assert dead.process.exitcode == code
        said = alive.end(10)  # it is told at once; the rest is to leave Python on a busy machine
    finally:
        alive.process.kill()
    assert alive.process.exitcode == 1
    assert "another one ended" in said
    assert "Traceback" not in said


@pytest.mark.long
def test_torchrun_shows_whose_death_ended_the_job(blobs, tmp_path):
    arguments, _ = dying(blobs, tmp_path, "raise")
    command = [*torchrun(2), "-m", "helpers.distributed_runs", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=environment())
    assert time.time() - (tmp_path / "died").stat().st_mtime < 30  # after which torchrun would have killed the other
    assert result.returncode == 1
    assert "ZeroDivisionError: of its own mind" in result.stderr


def test_a_process_that_has_lost_another_says_so_in_a_sentence(monkeypatch):
    def gone(*_):
        raise RuntimeError("Connection closed by peer [127.0.0.1]:123\nmore")

    def broken(*_):
        raise RuntimeError("NCCL error: unhandled cuda error")

    for name in ("all_gather_object", "broadcast_object_list", "all_reduce", "barrier"):
        monkeypatch.setattr(f"torch.distributed.{name}", gone)
    here, sentence = (
        World(1, 2, 1, 2),
        r"process 1: another one ended \(connection closed\)",
    )
    for talk in (
        here.exchange,
        here.share,
        here.first,
        lambda x: here.sum(torch.zeros(1)),
        lambda x: here.one_per_machine_first(),
    ):
        with pytest.raises(Lost, match=sentence), talk(None) or nullcontext():
            pass
    monkeypatch.setattr("torch.distributed.barrier", broken)  # is this one's own fault, and tells it in full
    with pytest.raises(RuntimeError, match="NCCL"), here.one_per_machine_first():
        pass


@pytest.mark.long
def test_a_restart_after_a_death_goes_on_from_the_last_checkpoint(blobs, tmp_path):
    arguments, undisturbed = dying(blobs, tmp_path, "kill")
    command = [*torchrun(2, "--max-restarts", "1"), "-m", "helpers.distributed_runs", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=environment())
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("run: resuming in time step 2, after update") == 1
    assert outcome(tmp_path / "run") == single(undisturbed, tmp_path / "one")


@pytest.mark.long
def test_two_machines_go_on_together_after_a_process_of_one_has_died(blobs, tmp_path):
    arguments, undisturbed = dying(blobs, tmp_path, "kill")
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "two"]
    machine = [
        *torchrun(1, "--nnodes", "2", "--max-restarts", "2", *meet),
        "-m",
        "helpers.distributed_runs",
        *arguments,
        "--fresh",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    machines = [subprocess.Popen(machine, env=environment(), **pipes) for _ in range(2)]
    try:
        said = "".join(machine.communicate(timeout=240)[0] for machine in machines)
    finally:
        for each in machines:
            each.terminate()
    assert [each.returncode for each in machines] == [0, 0], said
    assert said.count("run: resuming in time step 2, after update") == 1  # on both machines it is a restart
    assert outcome(tmp_path / "run") == single(undisturbed, tmp_path / "one")


@pytest.mark.long
def test_sigterm_to_torchrun_saves_the_run(blobs, tmp_path):
    arguments = ["train", "--method", "dietcl", *small(blobs, "--budget", "4000"), "--threads", "1", "--device", "cpu"]
    command = [*torchrun(2), "-m", "dietcl", *arguments, "--out", str(tmp_path / "run")]
    job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run/events.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    job.send_signal(signal.SIGTERM)
    _, said = job.communicate(timeout=60)
    assert "run: saved; run the same command to resume" in said
    assert job.returncode != 0  # which is torchrun's own
    assert list((tmp_path / "run/checkpoints").glob("0*"))


# Parts.


def test_places_are_found_in_the_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM_", "RANK", "LOCAL_", "WORLD_")):
            monkeypatch.delenv(name)
    assert ranks() == (0, 1, 0, 1)
    # A batch script knows of tasks, but only srun starts them.
    for name, value in {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}.items():
        monkeypatch.setenv(name, value)
    assert ranks() == (0, 1, 0, 1)
    srun = {"STEP_NUM_TASKS": "8", "PROCID": "5", "LOCALID": "1", "STEP_TASKS_PER_NODE": "4(x2)"}
    for name, value in ((f"SLURM_{name}", value) for name, value in srun.items()):
        monkeypatch.setenv(name, value)
    assert ranks() == (5, 8, 1, 4)
    for name, value in {"RANK": "2", "WORLD_SIZE": "6", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    assert ranks() == (2, 6, 2, 3)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("node[03-05,9],rack1", "node03"), ("gpu7", "gpu7"), ("a-1,a-2", "a-1"), ("", "127.0.0.1")],
)
def test_the_first_node_leads(monkeypatch, nodes, first):
    monkeypatch.setenv("SLURM_STEP_NODELIST", nodes)
    assert distributed._first_host() == first


def test_a_sum_of_gradients_is_that_of_single_precision_rounded_once():
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in (2, 3, 1)]
    gradients = Gradients(parameters, 3, World())
    for values in ([1.0, 2.0**-30], [-1.0, 2.0**-30], [2.0**-40, 1.0]):
        parameters[0].grad = torch.tensor(values)
        gradients.add()
    gradients.finish()
    # In single precision the first would be lost if the last of its three came before the second.
    assert parameters[0].grad.tolist() == [2.0**-40, 1.0]
    assert parameters[1].grad is None
    assert parameters[2].grad is None
    assert all(parameter.dtype == torch.float32 for parameter in parameters)


def test_one_micro_batch_alone_keeps_its_gradient():
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = expected = torch.ones(2)
    gradients = Gradients([parameter], 1, World())
    gradients.add()
    gradients.finish()
    assert parameter.grad is expected


def test_threads_are_shared_out(monkeypatch):
    monkeypatch.setattr(distributed, "cores", lambda: 8)
    assert [distributed.default_threads(World(0, size, 0, size)) for size in (1, 2, 3, 64)] == [8, 4, 2, 1]


def test_srun_has_dealt_out_the_cores(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    assert distributed.default_threads(World(0, 4, 0, 4)) == 6


@pytest.mark.parametrize(("option", "code"), [("--lr=-1", 2), ("--no-such=1", 2), ("--help", 0)])
def test_options_are_the_first_processs_business(option, code, monkeypatch, capfd):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        main(["train", option])
    assert end.value.code == code
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("verb", ["demo", "compare", "pretrain"])
def test_other_verbs_are_for_one_process(verb, monkeypatch, capfd):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert main([verb]) == 2
    assert f"dietcl {verb}: is for one process" in capfd.readouterr().err
