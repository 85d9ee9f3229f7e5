"""A stream: time steps of opaque row numbers with the revealed labels, and nothing that tells a hidden one."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import numpy.typing as npt

from dietcl.rng import numpy_generator
from dietcl.streams.assign_steps import NOWHERE, TEST, TRAIN, Assignment, assign_steps
from dietcl.streams.index import Index
from dietcl.streams.options import Recipe

Rows = npt.NDArray[np.int64]
Labels = npt.NDArray[np.int64]
_AT_ONCE = 2**22


@dataclass(frozen=True)
class TimeStep:
    """What the learner gets at time step t (from 1): rows with revealed labels, and rows without."""

    t: int
    labeled: Rows
    labels: Labels  # class numbers, given in the order of their first reveal
    unlabeled: Rows
    seen_classes: int  # revealed so far, this time step included
    new_classes: tuple[str, ...]
    spans: int = 1  # how many time steps' budgets it may spend: all of them if it is the union of a stream
    by_class: bool = False  # whether the stream is cut by class, so that images arrive with others of their class
    unplaced: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    """Unlabeled rows that chance put into this time step, as their class or time is in no manifest."""

    @property
    def classes(self) -> Labels:
        """The class numbers revealed in this time step, sorted."""
        return np.unique(self.labels)

    @property
    def is_first(self) -> bool:
        """Whether no label was revealed before this time step."""
        return self.seen_classes == len(self.new_classes)

    @property
    def realized_rate(self) -> float:
        """Share of this time step's images whose label is revealed."""
        return len(self.labeled) / max(1, len(self.labeled) + len(self.unlabeled))


@dataclass(frozen=True)
class TestStep:
    """Test images of one time step, for the evaluation alone; -1 marks classes that are never revealed."""

    __test__ = False  # not a test class

    t: int
    rows: Rows
    labels: Labels


@dataclass(frozen=True)
class Stream:
    """T time steps, their test images, and the row of the index for each opaque row number."""

    name: str
    identity: str
    seed: int
    steps: tuple[TimeStep, ...]
    tests: tuple[TestStep, ...]
    classes: tuple[str, ...]  # names by class number
    index_row: npt.NDArray[np.uint32]  # opaque row number -> row of the index
    times: tuple[tuple[float, float] | None, ...] = ()
    """First and last time of each time step's training images; empty unless the stream is cut by time."""

    def step(self, t: int) -> TimeStep:
        """Return time step t."""
        return next(step for step in self.steps if step.t == t)

    def union(self) -> "Stream":
        """Return the stream with everything in its last time step, which has the budgets of all."""
        if not self.steps:
            return self
        labeled = np.concatenate([step.labeled for step in self.steps])
        order = np.argsort(labeled)
        union = replace(
            self.steps[-1],
            labeled=labeled[order],
            labels=np.concatenate([step.labels for step in self.steps])[order],
            unlabeled=np.sort(np.concatenate([step.unlabeled for step in self.steps])),
            new_classes=tuple(name for step in self.steps for name in step.new_classes),
            spans=len(self.steps),
            unplaced=np.sort(np.concatenate([step.unplaced for step in self.steps])),
        )
        return replace(self, steps=(union,))

    @property
    def realized_rate(self) -> float:
        """Share of all arriving images whose label is revealed."""
        labeled = sum(len(step.labeled) for step in self.steps)
        return labeled / max(1, labeled + sum(len(step.unlabeled) for step in self.steps))


def build_stream(name: str, index: Index, recipe: Recipe, seed: int) -> Stream:
    """Cut an index into a stream; its identity is manifest hash + recipe + seed."""
    return reveal(name, index, recipe, seed, assign_steps(index, recipe, seed))


def reveal(name: str, index: Index, recipe: Recipe, seed: int, assignment: Assignment) -> Stream:
    """Build the time steps of an assignment: labels that are not revealed are neither read nor kept."""
    number_of_row = numpy_generator(seed, index.hash, "opaque-rows").permutation(len(index)).astype(np.uint32)
    index_row = np.empty(len(index), np.uint32)
    index_row[number_of_row] = np.arange(len(index), dtype=np.uint32)
    classes: list[int] = []  # codes in the order of their first reveal
    number_of_code = np.full(len(index.classes) + 1, -1, np.int64)  # the last entry answers for label -1
    steps = []
    of_step = _rows_by_step(index, assignment, TRAIN, recipe.time_steps)
    for t, rows in enumerate(of_step, start=1):
        is_labeled = assignment.labeled[rows]
        # Sorted by opaque number: the order is as random as the numbers themselves.
        labeled = np.sort(number_of_row[rows[is_labeled]]).astype(np.int64)
        unlabeled = np.sort(number_of_row[rows[~is_labeled]]).astype(np.int64)
        codes = index.label[index_row[labeled]]
        new = [int(code) for code in np.unique(codes) if number_of_code[code] < 0]
        number_of_code[new] = len(classes) + np.arange(len(new))
        classes += new
        new_classes = tuple(index.classes[code] for code in new)
        unplaced = unlabeled[assignment.unplaced[index_row[unlabeled]]]
        steps.append(
            TimeStep(
                *(t, labeled, number_of_code[codes], unlabeled, len(classes), new_classes),
                by_class=recipe.recipe == "class",
                unplaced=unplaced,
            )
        )
    tests = []
    for t, rows in enumerate(_rows_by_step(index, assignment, TEST, recipe.time_steps), start=1):
        numbers = np.sort(number_of_row[rows[index.label[rows] >= 0]]).astype(np.int64)
        tests.append(TestStep(t, numbers, number_of_code[index.label[index_row[numbers]]]))
    names = tuple(index.classes[code] for code in classes)
    times = (index.time[rows] for rows in of_step if recipe.recipe == "time")
    known = (part[~np.isnan(part)] for part in times)
    spans = tuple((float(part.min()), float(part.max())) if len(part) else None for part in known)
    return Stream(name, identify(index, recipe, seed), seed, tuple(steps), tuple(tests), names, index_row, spans)


def remarks(stream: Stream, index: Index) -> list[str]:
    """Return sentences on what the owner of a stream may not have intended."""
    warnings = []
    revealed = sum(len(step.labeled) for step in stream.steps)
    if hidden := sum(int((index.label[stream.index_row[step.unlabeled]] >= 0).sum()) for step in stream.steps):
        why = "the label rate hides the others, and recipe time those of images without a time"
        warnings.append(f"labels revealed: {revealed:,} of {revealed + hidden:,} ({why})")
    if unplaced := sum(len(step.unplaced) for step in stream.steps):
        why = "their class or time is not in the manifest, so no label is guessed for them"
        advice = "recipe data puts all images in random order" if stream.steps[0].by_class else "fill in their times"
        warnings.append(f"images put into time steps by chance: {unplaced:,} ({why}; {advice})")
    if empty := sum(not len(step.labeled) + len(step.unlabeled) for step in stream.steps):
        advice = "use fewer time steps"
        if stream.times:
            advice = f"too many images share a time, or there are too few; {advice}, or recipe data"
        warnings.append(f"time steps without images: {empty:,} of {len(stream.steps):,}; {advice}")
    truths = np.concatenate([test.labels for test in stream.tests])
    if not len(truths):
        warnings.append("no test image has a label, so no accuracy will be measured")
    elif unknown := int((truths < 0).sum()):
        which = "test images of classes that are never revealed, which count as wrong"
        warnings.append(f"{which}: {unknown:,} of {len(truths):,}")
    return warnings


def _rows_by_step(index: Index, assignment: Assignment, split: int, time_steps: int) -> list[npt.NDArray[np.uint32]]:
    """Return the rows of every time step in order, in chunks: sorting all at once would take the most memory."""
    parts: list[list[npt.NDArray[np.uint32]]] = [[] for _ in range(time_steps)]
    for start in range(0, len(index), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        step = assignment.step[part]
        rows = np.flatnonzero((index.split[part] == split) & (step != NOWHERE))
        rows = rows[np.argsort(step[rows], kind="stable")]
        present, begins = np.unique(step[rows], return_index=True)
        for number, found in zip(present, np.split(rows, begins[1:]), strict=False):
            parts[number].append((found + start).astype(np.uint32))
    return [np.concatenate([np.zeros(0, np.uint32), *found]) for found in parts]


def identify(index: Index, recipe: Recipe, seed: int) -> str:
    """Return what tells a stream from others: manifest hash, recipe and seed."""
    text = json.dumps({"manifest": index.hash, "recipe": asdict(recipe), "seed": seed}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
