"""A method that remembers unlabeled images with guessed labels, in phases that go on after the sweep that guesses."""

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import dietcl
from dietcl.engine.loop import advance, learn
from dietcl.errors import Stopped
from dietcl.execution import Execution
from dietcl.methods import METHODS
from dietcl.methods.base import Method, Mix, Phase, Pool, Reserve, Sweep, Term
from dietcl.run import execute
from dietcl.streams.assign_steps import TRAIN, assign_steps
from dietcl.streams.index import open_manifest
from dietcl.streams.stream import reveal
from helpers.distributed_runs import carry_out, config_of, launch
from helpers.recording import Notes, equal, hand_over, run_through, weights
from helpers.runs import interrupt, outcome, run
from helpers.tiny import tiny_config, tiny_learner

MIX = Mix(labeled=1 / 3, memory=1 / 3, larder=1 / 3)
NOTHING = {"rows": torch.zeros(0, dtype=torch.int64), "labels": torch.zeros(0, dtype=torch.int64)}
NOTHING["weights"] = torch.zeros(0, dtype=torch.float64)


class Hoarder(Method):
    """Guesses labels amid a time step, keeps the surest, and looks at some of them again at its end."""

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """How much it looks at."""

        most: int = 25
        share: float = 0.1
        keep: int = 16

    def __init__(self, config):
        super().__init__(config)
        self.found, self.kept = dict(NOTHING), dict(NOTHING)

    def next_phase(self, step, done, remaining):
        config = self.config
        plan = [
            Phase(name="begin", mix=MIX, share=0.4, schedule=(0.0, 0.4)),
            Sweep(name="guess", pool="unlabeled", most=config.most, share=config.share),
            Phase(name="go on", mix=MIX, schedule=(0.4, 1.0), reserve=Reserve(forward=9)),
            Sweep(name="again", pool="larder", most=8),
        ]
        return plan[len(done)] if len(done) < len(plan) else None

    def losses(self, net, phase, batch):
        for part, logits in zip(batch.supervised, net.logits(*batch.supervised), strict=True):
            yield Term(part.pool, part.cross_entropy(logits))

    def gather(self, net, sweep, part):
        assert (part.labels is None) == (sweep.pool == "unlabeled")
        surest = net.scores(part.images, sweep.name).softmax(1).max(1)
        return {"rows": part.rows, "labels": surest.indices, "weights": surest.values.double()}

    def absorb(self, net, sweep, gathered):
        self.found = {name: torch.cat([self.found[name], gathered[name]]) for name in NOTHING}

    def end_sweep(self, net, step, sweep):
        assert net.classes == step.seen_classes
        # The latest guess of an image replaces the one before it.
        is_old = ~torch.isin(self.kept["rows"], self.found["rows"])
        both = {name: torch.cat([self.kept[name][is_old], self.found[name]]) for name in NOTHING}
        surest = both["weights"].sort(descending=True, stable=True).indices[: self.config.keep]
        self.kept, self.found = {name: value[surest] for name, value in both.items()}, dict(NOTHING)
        net.pay("tidy", 1e4)

    def remembered(self):
        rows, labels, weights = (self.kept[name].numpy() for name in ("rows", "labels", "weights"))
        return Pool(rows, labels, cumulative=np.cumsum(weights))

    def state(self):
        return {f"{part} {name}": value for part in ("found", "kept") for name, value in getattr(self, part).items()}

    def load_state(self, state):
        self.found, self.kept = ({name: state[f"{part} {name}"] for name in NOTHING} for part in ("found", "kept"))


def hoarder(blobs, kind=Hoarder, budget="6", **options):
    learner = tiny_learner(tiny_config(blobs, budget=budget))
    learner.method, learner.recorder = kind(Hoarder.Config(**options)), Notes()
    return learner


def batches_of(learner):
    """Learn the whole stream; return every micro-batch with its phase and what the method remembered then."""
    losses, seen = learner.method.losses, []

    def watched(net, phase, batch):
        seen.append((phase.name, batch, learner.method.remembered()))
        return losses(net, phase, batch)

    learner.method.losses = watched
    run_through(learner)
    return seen


# What is drawn.


def test_an_empty_larder_gives_its_share_to_the_others(blobs):
    sizes = [
        (batch.key[1], name, {part.pool: len(part) for part in batch.parts})
        for name, batch, _ in batches_of(hoarder(blobs))
    ]
    full = {"labeled": 2, "memory": 2, "larder": 2}
    for t, name, found in sizes:
        assert found == ({"labeled": 3, "memory": 3} if (t, name) == (1, "begin") else full)
    assert {(t, name) for t, name, _ in sizes} == {(t, name) for t in (1, 2, 3) for name in ("begin", "go on")}


def test_what_is_drawn_is_what_the_method_remembers_with_its_own_labels(blobs):
    learner = hoarder(blobs)
    shown = {t: set(np.concatenate([s.unlabeled for s in learner.stream.steps[:t]]).tolist()) for t in (1, 2, 3)}
    for _, batch, pool in batches_of(learner):
        if batch.larder is None:
            continue
        guess = dict(zip(pool.rows.tolist(), pool.labels.tolist(), strict=True))
        drawn = batch.larder.rows.tolist()
        assert [guess[row] for row in drawn] == batch.larder.labels.tolist()
        assert set(drawn) <= shown[batch.key[1]]
        assert set(batch.larder.partners.tolist()) <= set(batch.larder.labels.tolist())  # mixed among themselves
    assert len(learner.method.kept["rows"]) == 16


def test_labels_that_are_guessed_wrong_stay_wrong(blobs):
    class Stubborn(Hoarder):
        def gather(self, net, sweep, part):
            found = super().gather(net, sweep, part)
            return {**found, "labels": torch.zeros_like(found["labels"])}

    learner = hoarder(blobs, Stubborn)
    drawn = [batch.larder for _, batch, _ in batches_of(learner) if batch.larder is not None]
    assert {label for part in drawn for label in part.labels.tolist()} == {0}
    index = open_manifest(blobs)
    of_code = {name: number for number, name in enumerate(learner.stream.classes)}
    truth = {
        of_code[index.classes[code]] for part in drawn for code in index.label[learner.stream.index_row[part.rows]]
    }
    assert len(truth) > 1


def test_an_image_of_weight_zero_is_remembered_and_never_drawn(blobs):
    class Choosy(Hoarder):
        def gather(self, net, sweep, part):
            return {**super().gather(net, sweep, part), "weights": (part.rows % 3 == 0).double()}

    found = batches_of(hoarder(blobs, Choosy, keep=100))
    drawn = Counter(row for _, batch, _ in found if batch.larder is not None for row in batch.larder.rows.tolist())
    assert any(row % 3 for _, _, pool in found for row in pool.rows.tolist())
    assert drawn
    assert all(row % 3 == 0 for row in drawn)


@pytest.mark.parametrize("keep", [16, 0])
def test_a_larder_alone_is_a_pool_like_any_other(blobs, keep):
    class Alone(Hoarder):
        def next_phase(self, step, done, remaining):
            plan = Sweep(name="guess", pool="unlabeled"), Phase(name="learn", mix=Mix(larder=1), updates=2)
            return plan[len(done)] if len(done) < 2 else None

    learner = hoarder(blobs, Alone, keep=keep)
    found = batches_of(learner)
    assert len(found) == (3 * 2 * 2 if keep else 0)  # from an empty one nothing can be learned
    assert all([part.pool for part in batch.parts] == ["larder"] and len(batch.larder) == 6 for _, batch, _ in found)
    paid = [{item.purpose for item in receipt.items if item.passes} for receipt in learner.ledger.closed]
    assert all(purposes == {"guess", "tidy", *["larder"] * (keep > 0)} for purposes in paid)


def test_the_labels_of_a_sweep_through_the_larder_are_the_guesses(blobs):
    shown = []

    class Watched(Hoarder):
        def gather(self, net, sweep, part):
            if sweep.pool == "larder":
                guess = dict(zip(self.kept["rows"].tolist(), self.kept["labels"].tolist(), strict=True))
                shown.append([guess[row] for row in part.rows.tolist()] == part.labels.tolist())
            return super().gather(net, sweep, part)

    learner = hoarder(blobs, Watched)
    next(learn(learner))
    assert shown == [True, True]  # 6 and 2 of 8
    assert [(e["name"], e["images"], e["of"]) for e in learner.recorder.of("sweep")][-1] == ("again", 8, 16)


def test_permuting_hidden_labels_changes_nothing_that_is_remembered_or_learned(blobs):
    config, index = tiny_config(blobs, budget="6"), open_manifest(blobs)
    assignment = assign_steps(index, config.recipe, config.seed)
    hidden = np.flatnonzero((index.split == TRAIN) & ~assignment.labeled)
    label = index.label.copy()
    label[hidden] = np.random.default_rng(5).permutation(label[hidden])
    assert (label != index.label).any()
    runs = []
    for one in (index, replace(index, label=label)):
        learner = tiny_learner(config, reveal("s", one, config.recipe, config.seed, assignment), one)
        learner.method = Hoarder(Hoarder.Config())
        runs.append(run_through(learner))
    assert equal(runs[0].method.state(), runs[1].method.state())
    assert equal(weights(runs[0]), weights(runs[1]))
    assert runs[0].ledger.receipts() == runs[1].ledger.receipts()


@pytest.mark.parametrize("every", [1, 2])
def test_guesses_are_compared_with_the_truths_that_are_known(blobs, every):
    config, index = tiny_config(blobs, budget="6"), open_manifest(blobs)
    assignment = assign_steps(index, config.recipe, config.seed)
    label = index.label.copy()
    label[np.flatnonzero((index.split == TRAIN) & ~assignment.labeled)[::every]] = -1
    one = replace(index, label=label)
    learner = tiny_learner(config, reveal("s", one, config.recipe, config.seed, assignment), one)
    learner.method, learner.recorder = Hoarder(Hoarder.Config()), Notes()
    for event in run_through(learner).recorder.of("step_end"):
        assert event["guesses"] == 16
        if every == 1:
            assert event["guesses_known"] == 0
            assert "guesses_right" not in event
        else:
            assert 0 <= event["guesses_right"] <= event["guesses_known"] < 16
            assert event["guesses_known"] > 0


# Going on from a checkpoint.


def handed_over(make, folder):
    """Learn with another learner after every moment; returns the last one, all events and the moments."""
    learner, events, moments = make(), [], []
    while moment := next(advance(learner), None):
        events += learner.recorder.events
        moments.append(moment)
        resumed = make()
        hand_over(learner, resumed, folder / str(len(moments)))
        assert resumed.position == learner.position
        learner = resumed
    return learner, events + learner.recorder.events, moments


def told(events):
    return [{name: value for name, value in event.items() if name not in ("seconds", "data_wait")} for event in events]


@pytest.mark.parametrize(
    "budget", ["6", "1.3"]
)  # of the lesser the first phase gets too little, and the sweep ends at once
def test_a_run_handed_over_after_every_update_and_micro_batch_ends_with_the_same_bits(blobs, tmp_path, budget):
    whole = run_through(hoarder(blobs, budget=budget))
    learner, events, moments = handed_over(lambda: hoarder(blobs, budget=budget), tmp_path)
    assert set(moments) == {"update", "learned", "step", *["sweep"] * (budget == "6")}
    assert equal(weights(learner), weights(whole))
    assert equal(learner.method.state(), whole.method.state())
    assert learner.ledger.receipts() == whole.ledger.receipts()
    assert (learner.counts.loss_sum == whole.counts.loss_sum).all()
    assert told(events) == told(whole.recorder.events)


@pytest.fixture
def registered():
    known = dict(METHODS)
    dietcl.register_method("hoarder")(Hoarder)
    yield
    METHODS.clear()
    METHODS.update(known)


@pytest.mark.parametrize(("t", "fraction"), [(1, 0.45), (2, 0.3), (2, 0.5), (3, 0.9)])
def test_a_run_that_is_interrupted_ends_as_if_it_had_not_been(blobs, tmp_path, registered, t, fraction):
    config = tiny_config(blobs, "hoarder", budget="6")
    run(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", interrupt(t, fraction), checkpoint_every=1)
    run(config, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


# The method of the page about writing one.


def test_the_method_of_the_page_learns_from_its_guesses_and_goes_on_from_a_checkpoint(blobs, tmp_path):
    page = (Path(__file__).parent.parent / "docs/write-a-method.md").read_text()
    (code,) = re.findall(r"```py\n(.*?)```", page, flags=re.S)
    names = {}
    exec(code, names)

    def guessing():
        learner = hoarder(blobs, lambda config: names["Guessing"](None), budget="10")
        learner.method.setup(learner.net)
        return learner

    whole = guessing()
    pools = [(batch.key[1], name, [part.pool for part in batch.parts]) for name, batch, _ in batches_of(whole)]
    assert all(found == ["memory"] + ["larder"] * ((t, name) != (1, "begin")) for t, name, found in pools)
    # Of 120 passes 48 go to four updates; 0.2 of 72 are 14.4, more than 32 images forward; the rest is five updates.
    assert Counter(pools[k][:2] for k in range(0, len(pools), 2)) == {
        (t, name): count for t in (1, 2, 3) for name, count in (("begin", 4), ("go on", 5))
    }
    assert len(whole.method.guesses["rows"]) == 3 * 32
    learner, *_ = handed_over(guessing, tmp_path)
    assert equal(weights(learner), weights(whole))
    assert equal(learner.method.state(), whole.method.state())


# Several processes.

# Of 96 passes 24 are spent when it guesses; a micro-batch costs 2 of them.
SHARES = {0.02: 6, 0.05: 12, 0.08: 18, 0.1: 24, 1.0: 25}  # images that are shown


def tasks_of(folder):
    options = [{"share": share} for share in SHARES]
    tasks = [{"method": "hoarder", "budget": "4", "options": given} for given in options]
    tasks += [{"method": "hoarder", "budget": budget, "curves": 2} for budget in ("1.2", "0.3", "2.55")]
    return [{**task, "folder": str(folder / str(number))} for number, task in enumerate(tasks)]


def carry_out_registered(manifest, tasks):
    """Carry out runs in a process that does not know the method yet."""
    dietcl.register_method("hoarder")(Hoarder)
    carry_out(manifest, tasks)


def together(size, manifest, tasks):
    """Carry out runs one after the other in so many processes."""
    children = launch(size, carry_out_registered, manifest, tasks)
    try:
        said = [child.end(240) for child in children]
    finally:
        for child in children:
            child.process.kill()
    assert all(child.process.exitcode == 0 for child in children), "\n".join(said)
    return said


@pytest.mark.long
def test_the_number_of_processes_changes_neither_a_bit_nor_where_a_sweep_stops(blobs, tmp_path, registered):
    for task in tasks_of(tmp_path / "1"):
        execute(config_of(blobs, task), Path(task["folder"]), Execution(device="cpu"))
    for size in (2, 3):
        together(size, blobs, tasks_of(tmp_path / str(size)))
    for number, task in enumerate(tasks_of(tmp_path)):
        alone, *others = (outcome(tmp_path / str(size) / str(number)) for size in (1, 2, 3))
        assert all(other == alone for other in others), task
        if task["budget"] == "4":
            guesses = [event["images"] for event in alone["events"] if event.get("name") == "guess"]
            assert guesses == [SHARES[task["options"]["share"]]] * 3


@pytest.mark.long
def test_a_run_goes_on_with_any_other_number_of_processes(blobs, tmp_path, registered):
    (task,) = [task for task in tasks_of(tmp_path) if task.get("options") == {"share": 0.1}]
    execute(config_of(blobs, task), tmp_path / "alone", Execution(device="cpu"))
    stopped = {**task, "stop_after": "0.001s"}
    for size in (3, 2, 3, 2):  # each stops after an update, or after a micro-batch of every process
        assert all("stopped" in words for words in together(size, blobs, [stopped, stopped]))
    with pytest.raises(Stopped):
        execute(config_of(blobs, task), Path(task["folder"]), Execution(device="cpu", stop_after="0.001s"))
    together(3, blobs, [task])
    assert outcome(Path(task["folder"])) == outcome(tmp_path / "alone")
