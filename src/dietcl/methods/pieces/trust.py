"""How far a guess can be trusted, from labels that were guessed before they were learned."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

LATEST = 256  # labels that count: the encoder that was tested with earlier ones has changed since
_PRIOR_VARIANCE = (0.25, 4.0)  # of slope and offset
_NEWTON_STEPS = 20


class Evidence:
    """How confident guesses of labels were, and whether they were right."""

    def __init__(self) -> None:
        self.confidence = torch.zeros(0, dtype=torch.float64)
        self.right = torch.zeros(0, dtype=torch.float64)

    def add(self, confidence: Tensor, right: Tensor) -> None:
        """Take in guesses of labels, and forget the earliest beyond the latest ones."""
        self.confidence = torch.cat([self.confidence, confidence.double()])[-LATEST:]
        self.right = torch.cat([self.right, right.double()])[-LATEST:]

    def chance_of_right(self, confidence: Tensor, expected: float) -> Tensor:
        """Return the probability that guesses are right, by logistic regression on the evidence.

        Without any evidence, the mean of the probabilities is the expected one.
        """
        odds = _log_odds(confidence.double())
        slope, offset = self._fit(_offset(odds, expected))
        return torch.sigmoid(slope * odds + offset)

    def state(self) -> dict[str, Tensor]:
        """Return the evidence."""
        return {"evidence_confidence": self.confidence, "evidence_right": self.right}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.confidence, self.right = state["evidence_confidence"].cpu(), state["evidence_right"].cpu()

    def _fit(self, offset: float) -> Tensor:
        prior = torch.tensor([1.0, offset], dtype=torch.float64)
        precision = 1 / torch.tensor(_PRIOR_VARIANCE, dtype=torch.float64)
        x = torch.stack([_log_odds(self.confidence), torch.ones_like(self.confidence)], dim=1)

        def misfit(line: Tensor) -> float:
            logits = x @ line
            return float((softplus(logits) - self.right * logits).sum() + (precision * (line - prior) ** 2).sum() / 2)

        found = prior.clone()
        for _ in range(_NEWTON_STEPS):
            chance = (x @ found).sigmoid()
            gradient = x.T @ (chance - self.right) + precision * (found - prior)
            curvature = (x.T * (chance * (1 - chance))) @ x + precision.diag()
            step = torch.linalg.solve(curvature, gradient)
            # A whole step overshoots where labels contradict the prior.
            while misfit(found - step) > misfit(found) + 1e-12:
                step = step / 2
            found = found - step
        return found


def trust(chance: Tensor, classes: int) -> Tensor:
    """Return how far guesses are better than chance among so many classes: 1 if surely right, 0 if no better."""
    by_luck = 1 / classes if classes > 1 else 0.0
    return ((chance - by_luck) / (1 - by_luck)).clamp(min=0)


def _offset(odds: Tensor, mean: float) -> float:
    """Return what to add to log-odds so that their probabilities have a mean."""
    low, high = -20.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if float((odds + middle).sigmoid().mean()) < mean else (low, middle)
    return low


def _log_odds(probability: Tensor) -> Tensor:
    return probability.clamp(1e-4, 1 - 1e-4).logit()
