"""A study whose runs are not carried out: they score what a rule says."""

from collections.abc import Callable, Sequence
from pathlib import Path

from reproduction.run_cache import Cell, RunCache
from reproduction.study import Study

TIME_STEPS = 20
IMAGES = 1000


class RuledStudy(Study):
    """Makes every time step of a run score what the rule says of its cell, on a thousand test images each."""

    def __init__(self, name: str, out: Path, accuracy: Callable[[Cell], float]) -> None:
        super().__init__(name, out)
        self.accuracy = accuracy
        self.asked: list[Cell] = []

    def _run(self, cells: Sequence[Cell], store: RunCache, title: str) -> None:
        for cell in cells:
            if cell not in store:
                self.asked.append(cell)
                store.add(entry_of(cell, self.accuracy(cell)))


def entry_of(cell: Cell, accuracy: float) -> dict[str, object]:
    """Return the line of a cell that scored alike at all times."""
    steps = cell.config.first_time_steps or cell.config.recipe.time_steps
    right = round(IMAGES * accuracy)
    points = [0, 10, 20]
    curve = [
        {"t": t, "update": update, "loss": [1.0] * t, "accuracy": [accuracy] * t}
        for t in range(1, steps + 1)
        for update in points
    ]
    return {
        "key": cell.key,
        "hash": cell.hash,
        "correct": [[right] * (t + 1) for t in range(steps)],
        "count": [[IMAGES] * (t + 1) for t in range(steps)],
        "loss_sum": [[500.0] * (t + 1) for t in range(steps)],
        "facts": {
            "stream": "ruled",
            "labels_per_step": 20,
            "labels": 400,
            "arriving_per_step": 1000,
            "ridge": accuracy,
            "flops": {"memory": 2e12},
            "updates": 100,
            **({"curve": curve} if cell.config.evaluation.curves else {}),
        },
    }
