"""A linear head on fixed features, solved from labels and, as far as that helps the labels, from guesses."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dietcl.methods.pieces.ridge import PENALTIES, Sums, half_whitened, pad_scores, solve, to_double
from dietcl.methods.pieces.store import Store

WEIGHTS = (0.0, 1 / 16, 1 / 4, 1.0)  # of a guess that is surely right, where a label has 1


class SolvedHead:
    """Keeps the features of all labels, and of guesses only the sums that ridge regression needs."""

    def __init__(self, dim: int) -> None:
        self.labeled = Store()
        self.labeled.values = torch.zeros(0, dim)
        # In double precision: what differs from a large mean would drown in sums of single precision.
        self.guessed = Sums(*(torch.zeros(dim + 1, width, dtype=torch.float64) for width in (dim + 1, 0)))
        self.weight, self.bias = torch.zeros(dim, 0), torch.zeros(0)
        self.guess_weight = 0.0
        """What the labels' leave-one-out error chose of WEIGHTS."""
        self.solved_labels = 0
        """How many labels the head was solved from."""

    def add_guesses(self, features: Tensor, labels: Tensor, trust: Tensor, classes: int) -> None:
        """Take in guesses, each as far as it is trusted."""
        rows, root = _with_constant(to_double(features)), to_double(trust).sqrt()[:, None]
        self.guessed = self.guessed.add(root * rows, root * one_hot(labels, classes))

    def add_flops(self, guesses: int, classes: int) -> float:
        """Return what `add_guesses` computes of so many."""
        features = len(self.weight)
        return 2 * guesses * features * (features + classes)

    def solve(self, classes: int) -> None:
        """Solve the head with the weight of guesses and the penalty that tell labels best which were left out."""
        if not len(self.labeled):
            return
        x = _with_constant(to_double(self.labeled.values))
        y = one_hot(self.labeled.labels, classes).to(x)
        guessed = self.guessed.add(x[:0], y[:0])  # of as many classes
        own_gram, own_cross = x.T @ x, x.T @ y
        least = torch.inf
        for share in WEIGHTS:
            gram, cross = own_gram + share * guessed.gram, own_cross + share * guessed.cross
            count, mean, level = gram[-1, -1], gram[-1, :-1] / gram[-1, -1], cross[-1] / gram[-1, -1]
            scale = half_whitened((gram.diagonal()[:-1] / count - mean**2).clamp(min=0))
            inner = (gram[:-1, :-1] - count * torch.outer(mean, mean)) / torch.outer(scale, scale)
            right = (cross[:-1] - count * torch.outer(mean, level)) / scale[:, None]
            squares, vectors = torch.linalg.eigh(inner)
            squares, rows = squares.clamp(min=0), ((x[:, :-1] - mean) / scale) @ vectors
            rotated = vectors.T @ right
            for penalty in PENALTIES:
                shrunk = rows / (squares + penalty)
                leverage = (1 / count + (rows * shrunk).sum(1, keepdim=True)).clamp(max=1 - 1e-9)  # 1 of a single label
                error = float((((y - level - shrunk @ rotated) / (1 - leverage)) ** 2).mean())
                if error < least:
                    least, self.guess_weight = error, share
                    best = vectors, squares + penalty, rotated, scale, mean, level
        vectors, divisor, rotated, scale, mean, level = best
        weight = (vectors / divisor) @ rotated / scale[:, None]
        self.weight, self.bias = (part.to(self.labeled.values) for part in (weight, level - mean @ weight))
        self.solved_labels = len(self.labeled)

    def solve_labels(self, classes: int) -> None:
        """Solve the head from labels alone, which is far cheaper while there are fewer labels than features."""
        if len(self.labeled):
            found = solve(self.labeled.values, self.labeled.labels, classes, "half")
            self.weight, self.bias, self.guess_weight = found.weight, found.bias, 0.0
            self.solved_labels = len(self.labeled)

    @property
    def has_guesses(self) -> bool:
        """Whether any guess was added."""
        return bool(self.guessed.cross.any())

    def flops(self, labels: int, classes: int) -> float:
        """Return about what `solve` computes of so many labels, with guesses."""
        features = len(self.weight)
        sums = 2 * labels * features * (features + classes)
        decompositions = 9 * features**3 + 2 * features**2 * (labels + classes)
        penalties = 2 * len(PENALTIES) * labels * features * (classes + 1)
        return sums + len(WEIGHTS) * (decompositions + penalties) + 2 * features**2 * classes

    def scores(self, features: Tensor, classes: int) -> Tensor:
        """Return the scores of all classes so far, about 1 for the right one and 0 for others."""
        return pad_scores(features @ self.weight.to(features) + self.bias.to(features), classes)

    def state(self) -> dict[str, Tensor]:
        """Return everything."""
        guessed = {"guessed_gram": self.guessed.gram, "guessed_cross": self.guessed.cross}
        guessed["guess_weight"] = torch.tensor(self.guess_weight)
        guessed["solved_labels"] = torch.tensor(self.solved_labels)
        return {f"labeled_{name}": value for name, value in self.labeled.state().items()} | guessed | self.solution()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.labeled.load_state({name: state[f"labeled_{name}"].cpu() for name in self.labeled.state()})
        self.guessed = Sums(state["guessed_gram"].cpu(), state["guessed_cross"].cpu())
        self.guess_weight, self.solved_labels = float(state["guess_weight"]), int(state["solved_labels"])
        self.load_solution(state)

    def load_solution(self, state: dict[str, Tensor]) -> None:
        """Restore what `solution` returned."""
        self.weight, self.bias = state["weight"], state["bias"]

    def solution(self) -> dict[str, Tensor]:
        """Return what `scores` needs."""
        return {"weight": self.weight, "bias": self.bias}


def _with_constant(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)
