"""Labels guessed for images that arrive beside a few labeled ones, in closed form on their features.

Two guessers of different kinds vote. One lets the labels spread along a graph of nearest neighbors (Zhou et al.,
NeurIPS 2003). The other fits a ridge classifier, and again with the more confident half of its own guesses.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from dietcl.methods.pieces.ridge import half_whitened, score_shares, solve, solve_flops
from dietcl.streams.assign_steps import rank_in_group

DIMENSIONS = 128  # principal directions that the images are compared in
NEIGHBORS = 20
SHARPNESS = 3  # power of the cosine that weighs a neighbor
SPREAD = 0.9  # of what an image takes over from its neighbors at a time
SPREADINGS = 20
FITS = 3  # of the ridge classifier with its own guesses
FOLDS = 5  # of the labels, each guessed from the others
_CHUNK = 1024


class Guesser:
    """Guesses the labels of images from those that are known, one time step's images at a time."""

    def __init__(self, features: Tensor) -> None:
        self._rows, variances = _principal(features)
        self._graph = _neighbor_graph(self._rows, variances)

    def shares(self, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Return for every image the shares of its possible classes by each guesser; a label of -1 is unknown."""
        return self._spread(labels, classes), self._fit(labels, classes)

    def _spread(self, labels: Tensor, classes: int) -> Tensor:
        known = labels >= 0
        sources = self._rows.new_zeros(len(labels), classes)
        sources[known] = one_hot(labels[known], classes).to(sources)
        sources /= sources.sum(0).clamp(min=1)  # classes are alike, however many labels they have
        spread = sources
        for _ in range(SPREADINGS):
            spread = SPREAD * (self._graph @ spread) + (1 - SPREAD) * sources
        return spread / spread.sum(1, keepdim=True).clamp(min=1e-12)

    def _fit(self, labels: Tensor, classes: int) -> Tensor:
        known, used, guesses = labels >= 0, labels >= 0, labels
        shares = self._rows.new_zeros(0)
        for _ in range(1 + FITS):
            found = solve(self._rows[used], guesses[used], classes, scale="none")
            shares = score_shares(self._rows @ found.weight + found.bias)
            confidence, best = shares.max(1)
            guesses = torch.where(known, labels, best)
            used = known | _confident_half(best.masked_fill(known, -1), confidence, classes)
        return shares


def cross_fit(guesser: Guesser, labels: Tensor, tested: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return each tested label's shares when it is guessed from the others, and its position, fold by fold.

    A label is not tested where no other one of its class would be left.
    """
    number = torch.zeros_like(labels)
    order = torch.where(tested, labels, classes).argsort(stable=True)  # so that a class is spread over the folds
    number[order] = torch.arange(len(labels)) % FOLDS
    shares, positions = [], []
    for fold in range(FOLDS):
        held = tested & (number == fold)
        left = torch.bincount(labels[(labels >= 0) & ~held], minlength=classes)
        held &= left[labels.clamp(min=0)] > 0
        if held.any():
            spread, fitted = guesser.shares(labels.masked_fill(held, -1), classes)
            shares.append((spread + fitted)[held] / 2)
            positions.append(held.nonzero()[:, 0])
    if not shares:
        return torch.zeros(0, classes), torch.zeros(0, dtype=torch.int64)
    return torch.cat(shares), torch.cat(positions)


def guess_flops(images: int, features: int, classes: int) -> float:
    """Return about what a `Guesser` of so many images, its guesses and their cross-fit compute."""
    size = min(DIMENSIONS, features)
    smaller = min(images, features)
    project = 2 * images * features * (smaller + size) + 9 * smaller**3
    graph = 2 * images**2 * size
    spread = 4 * SPREADINGS * images * NEIGHBORS * classes
    fits = (1 + FITS) * (solve_flops(images, size, classes) + 2 * images * size * classes)
    return project + graph + (1 + FOLDS) * (spread + fits)


def _principal(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return standardized features along their principal directions, and the variance along each."""
    rows = features.double()
    rows = (rows - rows.mean(0)) / (rows.std(0, correction=0) + 1e-6)
    is_dual = len(rows) < rows.shape[1]  # then the images' products tell the same, for less
    values, vectors = torch.linalg.eigh((rows @ rows.T if is_dual else rows.T @ rows) / len(rows))
    values, vectors = values.flip(0)[:DIMENSIONS].clamp(min=0), vectors.flip(1)[:, :DIMENSIONS]
    along = vectors * (len(rows) * values).sqrt() if is_dual else rows @ vectors
    return along.to(features), values.to(features)


def _neighbor_graph(rows: Tensor, variances: Tensor) -> Tensor:
    """Return the symmetric, normalized weights between nearest neighbors as a sparse matrix."""
    points = normalize(rows / half_whitened(variances), dim=1)
    count, neighbors = len(points), min(NEIGHBORS, len(points) - 1)
    cosines, places = [], []
    for start in range(0, count, _CHUNK):
        near = points[start : start + _CHUNK] @ points.T
        own = torch.arange(len(near))
        near[own, own + start] = -1.0
        found = near.topk(neighbors, dim=1)
        cosines.append(found.values)
        places.append(found.indices)
    weights = torch.cat(cosines).clamp(min=0).pow(SHARPNESS).flatten() / 2
    one = torch.arange(count).repeat_interleave(neighbors)
    other = torch.cat(places).flatten()
    both = torch.stack([torch.cat([one, other]), torch.cat([other, one])])
    weights = torch.cat([weights, weights])
    degree = weights.new_zeros(count).index_add_(0, both[0], weights).clamp(min=1e-9)
    weights = weights / (degree[both[0]] * degree[both[1]]).sqrt()
    return torch.sparse_coo_tensor(both, weights, (count, count), check_invariants=False).coalesce()


def _confident_half(guesses: Tensor, confidence: Tensor, classes: int) -> Tensor:
    """Return the more confident half of the guesses of every class; -1 is no guess."""
    counts = torch.bincount(guesses + 1, minlength=classes + 1)
    return (guesses >= 0) & (2 * rank_in_class(guesses, confidence) < counts[guesses + 1])


def rank_in_class(labels: Tensor, scores: Tensor) -> Tensor:
    """Rank the images of every class by score, from 0 for the highest."""
    return torch.from_numpy(rank_in_group(labels.numpy(), scores.argsort(descending=True, stable=True).numpy()))
