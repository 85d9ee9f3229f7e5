"""The larder: images without a label that are remembered with the label that was guessed for them."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dietcl.methods.base import Part, Pool
from dietcl.streams.sampler import NOTHING

_NONE = -1  # in the place of a class


class Larder:
    """Row numbers, guessed labels, how far each guess is trusted, and the classes that it was chosen from."""

    def __init__(self) -> None:
        self.rows = torch.zeros(0, dtype=torch.int64)
        self.labels = torch.zeros(0, dtype=torch.int64)
        self.trust = torch.zeros(0, dtype=torch.float64)
        self.choice = torch.zeros(0, dtype=torch.int64)
        """Which row of `choices` a guess was chosen from."""
        self.choices = torch.zeros((0, 0), dtype=torch.int64)
        self._index()

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, rows: Tensor, labels: Tensor, trust: Tensor, possible: Tensor) -> None:
        """Remember guesses for good, all chosen from the same possible classes."""
        if not len(rows):
            return
        width = max(self.choices.shape[1], len(possible))
        padded = [pad(row, (0, width - row.shape[-1]), value=_NONE) for row in (self.choices, possible.cpu()[None])]
        self.choice = torch.cat([self.choice, torch.full_like(rows.cpu(), len(self.choices))])
        self.choices = torch.cat(padded)
        self.rows = torch.cat([self.rows, rows.cpu()])
        self.labels = torch.cat([self.labels, labels.cpu()])
        self.trust = torch.cat([self.trust, trust.cpu().double()])
        self._index()

    @property
    def weights(self) -> Tensor:
        """How often each guess is drawn, where a label has 1."""
        return self.trust**2  # of two guesses the safer one is worth more than its odds

    def pool(self) -> Pool:
        """Return what batches are drawn from."""
        if not len(self):
            return NOTHING
        return Pool(self.rows.numpy(), self.labels.numpy(), cumulative=np.cumsum(self.weights.numpy()))

    def beliefs(self, rows: Tensor, classes: int) -> Tensor:
        """Return the probability of every class: trust for the one guessed, the rest for all possible ones alike."""
        guess = self._order[torch.searchsorted(self._sorted, rows)]
        possible = self.choices[self.choice[guess]]
        number = (possible != _NONE).sum(1, keepdim=True)
        trust = self.trust[guess, None]
        # Where there is no class, one more column takes what is written.
        beliefs = torch.zeros(len(rows), classes + 1, dtype=torch.float64)
        beliefs.scatter_(1, possible.where(possible != _NONE, classes), ((1 - trust) / number).expand(possible.shape))
        return beliefs[:, :classes].scatter_add(1, self.labels[guess, None], trust).float()

    def cross_entropy(self, part: Part, logits: Tensor) -> Tensor:
        """Return the mean loss against what guesses and network together believe of each image, mixed as the images.

        A guess is where belief begins, and the network's own answer corrects it, as in expectation maximization.
        """
        assert part.rows is not None
        assert part.weight is not None
        log_p = logits.log_softmax(1)
        prior, answer = self.beliefs(part.rows, logits.shape[1]).to(logits), log_p.detach()
        weight = part.weight[:, None]
        own, mixed_in = (
            (before.log() + w * answer).softmax(1) for before, w in ((prior, weight), (prior.flip(0), 1 - weight))
        )
        loss = -((weight * own + (1 - weight) * mixed_in) * log_p).sum(1)
        return ((1 - part.smoothing) * loss - part.smoothing * log_p.mean(1)).mean()

    def state(self) -> dict[str, Tensor]:
        """Return the columns."""
        return {f"larder_{name}": getattr(self, name) for name in _COLUMNS}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name in _COLUMNS:
            setattr(self, name, state[f"larder_{name}"].cpu())
        self._index()

    def _index(self) -> None:
        self._sorted, self._order = self.rows.sort()


_COLUMNS = ("rows", "labels", "trust", "choice", "choices")
