"""How hard the built-in streams are: a ridge classifier on the frozen encoder, from the revealed labels alone.

python -m reproduction.difficulty
"""

from itertools import product
from typing import Any, Literal

import numpy as np

from dietcl import build_config, solved_head_accuracy

RECIPES: dict[str, dict[str, Any]] = {
    "glyphs": {"recipe": "class", "time_steps": 10, "label_rate": 0.02},
    "glyphs-drift": {"recipe": "time", "time_steps": 10, "label_rate": 0.02},
}
SEEDS = (0, 1, 2, 3, 4)
TOKENS: tuple[Literal["mean", "class"], ...] = ("mean", "class")


def main() -> None:
    """Print the accuracy on both built-in streams, by the features' kind, five seeds each."""
    for (stream, recipe), tokens in product(RECIPES.items(), TOKENS):
        values = [solved_head_accuracy(build_config(stream, seed=seed, **recipe), tokens) for seed in SEEDS]
        print(f"{stream}, {tokens} token: {np.mean(values):.1%} ± {np.std(values, ddof=1):.1%} over seeds {SEEDS}")


if __name__ == "__main__":
    main()
