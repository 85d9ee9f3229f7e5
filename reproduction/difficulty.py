"""How hard the built-in streams are: a ridge classifier on the frozen encoder, from the revealed labels alone.

python -m reproduction.difficulty
"""

from dataclasses import replace
from itertools import product
from typing import Literal

import numpy as np

from dietcl.cli.train import parse_run
from dietcl.solved_head import ridge_accuracy
from dietcl.streams.recipes import Recipe

RECIPES = {
    "glyphs": Recipe(recipe="class", time_steps=10, label_rate=0.02),
    "glyphs-drift": Recipe(recipe="time", time_steps=10, label_rate=0.02),
}
SEEDS = (0, 1, 2, 3, 4)
TOKENS: tuple[Literal["mean", "class"], ...] = ("mean", "class")


def main() -> None:
    """Print the accuracy on both built-in streams, by the features' kind, five seeds each."""
    for stream, tokens in product(RECIPES, TOKENS):
        values = []
        for seed in SEEDS:
            config, _ = parse_run(["--stream", stream, "--seed", str(seed)])
            values.append(ridge_accuracy(replace(config, recipe=RECIPES[stream]), tokens))
        print(f"{stream}, {tokens} token: {np.mean(values):.1%} ± {np.std(values, ddof=1):.1%} over seeds {SEEDS}")


if __name__ == "__main__":
    main()
