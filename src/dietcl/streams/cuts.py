"""Cuts that work: not into more time steps than there are classes, nor so sparse that no label is left."""

from collections.abc import Mapping
from dataclasses import replace

from dietcl.streams.manifest import Facts

RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def workable(facts: Facts, labels: Mapping[str | None, int]) -> Facts:
    """Return facts by which a stream can be cut from so many training images of each class (None: without a label).

    Where labels are missing, the data is sparse by itself and all that are known are revealed.
    """
    known = sorted(count for label, count in labels.items() if label is not None)
    if facts.recipe == "class" and len(known) < facts.time_steps:
        facts = replace(facts, time_steps=len(known)) if len(known) > 1 else replace(facts, recipe="data")
    if not known:
        return facts
    steps = 1 if facts.recipe == "class" else facts.time_steps
    if labels.get(None):
        return replace(facts, label_rate=1.0)
    if round(facts.label_rate * known[-1] / steps, 6) >= 0.5:
        return facts  # the largest class has a label, at least
    usual = known[len(known) // 2] / steps  # images of a class in a time step
    return replace(facts, label_rate=next((rate for rate in RATES if rate * usual >= 1), 1.0))
