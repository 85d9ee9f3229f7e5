"""Each method's price on paper: passes by the pools of a batch and the shapes of what is run, written down by hand.

f is a forward (1/3), r a reconstruction, q(k) a pass with k prompt tokens through frozen weights; a small letter that
follows stands for a module of the method's own, counted from its shapes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dietcl.budget.cost import CostModel, Operation
from dietcl.rng import number


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The images of a call by pool; at the end of a time step `memory` counts all labels so far."""

    unlabeled: int = 0
    labeled: int = 0
    memory: int = 0
    new_classes: int = 0
    key: tuple[int | str, ...] = ()
    is_first: bool = False

    @property
    def images(self) -> int:
        """All of them."""
        return self.unlabeled + self.labeled + self.memory


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Prices and shapes to calculate with."""

    accounting: str
    cost: CostModel
    config: Any
    classes: int
    dim: int
    grid: int
    patch: int

    def flops(self, flops: float) -> float:
        """Return FLOPs in passes."""
        return flops / self.cost.pass_flops(self.classes)

    def price(self, operation: Operation, images_price: float, prompts: int = 0) -> float:
        """Return the passes of an operation in this price list."""
        if self.accounting == "images":
            return images_price
        return self.flops(self.cost.flops(operation, self.classes, prompts))

    @property
    def f(self) -> float:
        """A forward."""
        return self.price("forward", 1 / 3)

    @property
    def r(self) -> float:
        """A reconstruction."""
        return self.price("reconstruct", 1.0)

    @property
    def head(self) -> float:
        """The head alone, learned on given features: forward and the gradient of its weights."""
        return self.flops(4 * self.dim * self.classes)

    def perceptron(self, *widths: int, gradient: bool = True) -> float:
        """A perceptron of these widths; a gradient costs as much as two forwards."""
        products = sum(one * other for one, other in pairwise(widths))
        return self.flops(products * (6 if gradient else 2))

    def branch(self, gradient: bool = True) -> float:
        """The fast branch: a stem on the image, which needs no gradient, and four pairs of convolutions."""
        narrow = self.dim // 8
        stem, stages = 3 * self.patch**2 * self.dim, 4 * (9 + 1) * self.dim * narrow
        return self.flops(self.grid**2 * (4 * stem + 6 * stages if gradient else 2 * stem + 2 * stages))


@dataclass(frozen=True)
class Rule:
    """The price of one phase, sweep or end of a time step."""

    what: str
    formula: str
    passes: Callable[[Paper, Drawn], float]


def _each(formula: str, passes: Callable[[Paper, Drawn], float], what: str = "image of an update") -> Rule:
    return Rule(what, formula, passes)


def _swept(formula: str, price: Callable[[Paper], float], what: str = "new label") -> Rule:
    return Rule(what, formula, lambda paper, drawn: price(paper) * drawn.images)


_ONE = _each("1", lambda p, d: d.images)


def _dietcl(p: Paper, d: Drawn) -> float:
    if p.config.reconstruct == "unlabeled":
        return d.unlabeled * p.r + d.labeled + d.memory
    shares = p.config.unlabeled, p.config.labeled + (p.config.memory if d.is_first else 0)
    reconstructed = int(d.labeled * shares[0] / sum(shares) + 0.5)
    return reconstructed * p.r + d.labeled - reconstructed + d.memory


def _l2p(p: Paper, d: Drawn) -> float:
    tokens = p.config.top * p.config.length
    pool = p.flops(2 * 3 * p.config.prompts * p.dim)  # queries against keys, gradient of both
    return d.images * (p.f + p.price("prompt", 1.0, tokens) + p.head + pool)


def _cassle(p: Paper, d: Drawn) -> float:
    w = p.config.width
    correlation = p.flops(2 * w**2)  # a pair's share of the product, and as much again for each gradient
    student = 2 * (1 + p.perceptron(p.dim, w, w, w)) + 3 * correlation
    teacher = 2 * (p.f + p.perceptron(p.dim, w, w, w, gradient=False) + p.perceptron(w, w, w)) + 4 * correlation
    return d.images * (student + (0 if d.is_first else teacher))


def _dualnet(p: Paper, d: Drawn) -> float:
    seed, t, _, update, _ = d.key
    views = p.config.outer * p.config.inner
    start = cycle = 0
    while True:  # walk through the cycles, each labeled or not by its coin
        is_labeled = not d.unlabeled or (d.labeled + d.memory > 0 and _coin(seed, t, cycle) < p.config.threshold)
        length = views + 2 * is_labeled
        if int(update) < start + length:
            break
        start, cycle = start + length, cycle + 1
    if int(update) - start >= views:
        return (d.labeled + d.memory) * (1 + p.branch() + p.head)
    current = d.labeled if is_labeled else d.unlabeled
    w = p.config.width
    return (current + d.memory) * (2 * (1 + p.perceptron(p.dim, w, w, w)) + p.flops(6 * w**2))


def _coin(*key: int | str) -> float:
    return number(*key, "cycle") / 2**64


def _ccic(p: Paper, d: Drawn, cross: bool) -> float:
    k: int = p.config.augmentations
    guesses = d.unlabeled * k * (p.f + 1)
    triplets = 2 * (d.labeled + d.memory)  # once mixed for the cross-entropy, once for the triplets
    apart = d.unlabeled + d.memory if cross and d.memory and d.unlabeled else 0
    return guesses + triplets + apart


def _ridge(p: Paper, d: Drawn) -> float:
    return p.flops(_ridge_flops(d.memory, p.dim, p.classes))


def _ridge_flops(n: int, features: int, classes: int) -> float:
    k = features + 1
    long, short = max(n, k), min(n, k)
    penalties = 9
    return 6 * long * short**2 + 20 * short**3 + 2 * short * classes * (n * (1 + penalties) + k)


def _guess(p: Paper, d: Drawn) -> float:
    n, features, kept, c = d.images, p.dim, min(128, p.dim), d.new_classes
    principal = 2 * n * features**2 + 9 * features**3 + 2 * n * features * kept
    neighbors = 2 * n**2 * kept
    spread = 20 * 2 * (2 * n * 20) * c  # twenty times, along twenty edges of each image and their other ends
    fits = 4 * (_ridge_flops(n, kept, c) + 2 * n * kept * c)
    return p.flops(principal + neighbors + 6 * (spread + fits))  # once for the guesses, five times for the evidence


def _ranpac(p: Paper, d: Drawn) -> float:
    n, m, c = d.memory, p.config.random_features, p.classes
    out = -(-n // 5)
    rest, penalties = n - out, 17
    project = 2 * n * p.dim * m
    gram = 2 * n * m * (n + c)  # fewer labels than random features: a weight for every label
    choose = 9 * rest**3 + 2 * rest**2 * (c + out) + 2 * out * rest * c * penalties
    return p.flops(project + gram + choose + n**3 / 3 + 2 * n**2 * c)


ARITHMETIC: dict[str, dict[str, Rule]] = {
    "dietcl": {
        "joint": _each("r if reconstructed, else 1", _dietcl, "image, joint"),
        "balance": _each("1", lambda p, d: d.memory, "image, memory alone"),
    },
    "larder": {
        "labels": _swept("f", lambda p: p.f),
        "guess": _swept("f", lambda p: p.f, "arriving image"),
        "guess, end": Rule("image of the time step", "principal directions, neighbors, 24 ridge fits", _guess),
        "learn": _ONE,
    },
    "er": {"replay": _ONE},
    "er_ace": {"replay": _ONE},
    "ewc": {"fine-tune": _ONE, "fisher": _swept("1", lambda p: 1)},
    "mas": {"fine-tune": _ONE, "importance": _swept("1", lambda p: 1)},
    "gdumb": {"retrain": _ONE},
    "l2p": {"prompt": _each("f + q(25) + head", _l2p)},
    "cassle": {
        "ssl": _each("2(1 + projector) + 2(f + projector/3 + predictor)", _cassle, "image of views"),
        "classifier": _each("f + head", lambda p, d: d.images * (p.f + p.head), "image, classifier"),
    },
    "dualnet": {
        "cycles": _each("2(1 + projector) in views, 1 + branch + head in labels, 0 if not its turn", _dualnet),
        "soft targets": _swept(
            "f + branch/3 + head/2", lambda p: p.f + p.branch(gradient=False) + p.flops(2 * p.dim * p.classes)
        ),
    },
    "ccic": {
        "mixmatch": _each("3(f + 1) + 1 unlabeled, 2 labeled, 3 memory", lambda p, d: _ccic(p, d, True)),
        "settle": _each("3(f + 1) unlabeled, 2 else", lambda p, d: _ccic(p, d, False), "image, last tenth"),
        "embed": _swept("f", lambda p: p.f, "label so far"),
    },
    "one_stage": {"fine-tune": _ONE},
    "two_stage": {
        "reconstruct": _each("r", lambda p, d: d.images * p.r, "image, first stage"),
        "fine-tune": _each("1", lambda p, d: d.images, "image, second stage"),
    },
    "joint": {
        "reconstruct": _each("r", lambda p, d: d.images * p.r, "image, first stage"),
        "fine-tune": _each("1", lambda p, d: d.images, "image, second stage"),
    },
    "naive": {"fine-tune": _ONE},
    "linear_probe": {
        "head": _each("f + head", lambda p, d: d.images * (p.f + p.head), "image of an update"),
        "features": _swept("f", lambda p: p.f),
        "end": Rule("label so far", "singular value decomposition", _ridge),
    },
    "ncm": {"means": _swept("f", lambda p: p.f)},
    "ranpac": {
        "adapt": _each("1", lambda p, d: d.images, "image, first time step"),
        "features": _swept("f", lambda p: p.f),
        "end": Rule("label so far", "projection, eigenvalues, solve", _ranpac),
    },
    "acm": {"features": _swept("f", lambda p: p.f)},
    "derpp": {"replay": _ONE, "logits": _swept("f", lambda p: p.f)},
    "fixmatch": {
        "match": _each("1 + f if unlabeled, else 1", lambda p, d: d.unlabeled * (1 + p.f) + d.labeled + d.memory)
    },
    "lwf": {"fine-tune": _each("1 + f", lambda p, d: d.images * (1 + (0 if d.is_first else p.f)))},
}
