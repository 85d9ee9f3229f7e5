"""Assigns every row of a manifest to a time step, and chooses the labels to reveal."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dietcl.errors import UserError
from dietcl.plural import plural
from dietcl.rng import numpy_generator
from dietcl.streams.index import Index
from dietcl.streams.manifest import SPLITS
from dietcl.streams.options import Recipe
from dietcl.streams.times import cut_edges

TRAIN, TEST = (SPLITS.index(name) for name in ("train", "test"))
NOWHERE = -1

Steps = npt.NDArray[np.int16]
_MOST_GROUPS = 2**24
_AT_ONCE = 2**22  # rows that are processed together, so that tens of millions need little extra memory


@dataclass(frozen=True)
class Assignment:
    """For every manifest row its time step (0-based, NOWHERE if unused) and whether its label is revealed."""

    step: Steps
    labeled: npt.NDArray[np.bool_]
    unplaced: npt.NDArray[np.bool_]
    """Whether chance chose the time step, as the manifest lacks what the stream is cut by."""


def assign_steps(index: Index, recipe: Recipe, seed: int) -> Assignment:
    """Assign every row to a time step and choose the labels to reveal."""
    if not (index.split == TRAIN).any():
        raise UserError("--stream: the manifest has no training images; mark them 'train' in its column 'split'")
    step = _ASSIGNERS[recipe.recipe](index, recipe, seed)
    labeled = _choose_labels(index, step, recipe, seed)
    if recipe.test_per_time_step is not None:
        test = np.flatnonzero((index.split == TEST) & (step != NOWHERE))
        rank = rank_in_group(step[test], numpy_generator(seed, "test-per-time-step").permutation(len(test)))
        step[test[rank >= recipe.test_per_time_step]] = NOWHERE
    return Assignment(step, labeled, _lacks_cut(index, recipe))


def _assign_by_class(index: Index, recipe: Recipe, seed: int) -> Steps:
    present = np.unique(index.label[(index.split == TRAIN) & (index.label >= 0)])
    if len(present) < recipe.time_steps:
        advice = "use fewer time steps, or --recipe data"
        raise UserError(
            f"--time-steps {recipe.time_steps}: the stream has only {plural(len(present), 'class')}; {advice}"
        )
    order = numpy_generator(seed, "class-order").permutation(present)
    step_of_class = np.full(len(index.classes) + 1, NOWHERE, np.int16)
    for step, classes in enumerate(np.array_split(order, recipe.time_steps)):
        step_of_class[classes] = step
    assignment = step_of_class[index.label]
    unknown = (index.label < 0) & (index.split == TRAIN)
    return _assign_at_random(assignment, unknown, recipe, seed, "label-unknown")


def _assign_by_time(index: Index, recipe: Recipe, seed: int) -> Steps:
    known = ~np.isnan(index.time)
    times = index.time[known & (index.split == TRAIN)]
    if not len(times):
        raise UserError("--recipe time: no training row of the manifest has a time; fill in the 'time' column")
    # Cuts go by value, so that all images of one moment, test images too, share a time step.
    edges = cut_edges(times, recipe.cut, recipe.time_steps)
    del times
    step = np.empty(len(index), np.int16)
    for start in range(0, len(step), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        step[part] = np.searchsorted(edges, index.time[part], side="right")
    step[~known] = NOWHERE
    return _assign_at_random(step, ~known & (index.split == TRAIN), recipe, seed, "time-unknown")


def _assign_anywhere(index: Index, recipe: Recipe, seed: int) -> Steps:
    step = np.full(len(index), NOWHERE, np.int16)
    for split in (TRAIN, TEST):  # each by itself, so that each is cut into equal counts
        _assign_at_random(step, index.split == split, recipe, seed, "any-time", split)
    return step


_ASSIGNERS = {"class": _assign_by_class, "time": _assign_by_time, "data": _assign_anywhere}


def _assign_at_random(step: Steps, rows: npt.NDArray[np.bool_], recipe: Recipe, *key: int | str) -> Steps:
    chosen = numpy_generator(*key).permutation(np.flatnonzero(rows))
    step[chosen] = np.arange(len(chosen)) % recipe.time_steps
    return step


def _lacks_cut(index: Index, recipe: Recipe) -> npt.NDArray[np.bool_]:
    if recipe.recipe == "class":
        return index.label < 0
    return np.isnan(index.time) if recipe.recipe == "time" else np.zeros(len(index), np.bool_)


def _choose_labels(index: Index, step: Steps, recipe: Recipe, seed: int) -> npt.NDArray[np.bool_]:
    eligible = (index.split == TRAIN) & (index.label >= 0) & (step != NOWHERE)
    if recipe.recipe == "time":
        eligible &= ~np.isnan(index.time)  # an image of unknown time may be from the future
    rows = np.flatnonzero(eligible).astype(np.uint32)
    groups = recipe.time_steps * len(index.classes)
    steps: npt.NDArray[Any] = step[rows].astype(np.int32 if groups < 2**31 else np.int64)
    group: npt.NDArray[Any] = steps * len(index.classes) + index.label[rows]
    if groups > _MOST_GROUPS:  # mostly empty ones, which are not worth counting
        group = np.unique(group, return_inverse=True)[1]
    size = np.bincount(group, minlength=1)
    # Rounded half up in decimals: 0.29 of 50 is 14.5, so 15, though its floating-point product is just below 14.5.
    quota = np.floor(np.round(size * recipe.label_rate, 6) + 0.5).astype(np.int64)
    if recipe.at_least_one:
        quota = np.maximum(quota, 1)
    labeled = np.zeros(len(index), np.bool_)
    # In random order the first rows of every group are revealed, up to its quota.
    order = numpy_generator(seed, "reveal").permutation(len(rows))
    for start in range(0, len(order), _AT_ONCE):
        part = order[start : start + _AT_ONCE]
        part = part[quota[group[part]] > 0]
        chosen = part[rank_in_group(group[part], np.arange(len(part))) < quota[group[part]]]
        quota -= np.bincount(group[chosen], minlength=len(quota))
        labeled[rows[chosen]] = True
    return labeled


def rank_in_group(group: npt.NDArray[np.integer], order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Rank the members of every group in the given order, from 0."""
    order = order[np.argsort(group[order], kind="stable")]
    in_order = group[order]
    starts = np.flatnonzero(np.diff(in_order, prepend=in_order[:1] - 1))  # np.unique would sort once more
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(starts, np.diff(np.r_[starts, len(group)]))
    return rank
