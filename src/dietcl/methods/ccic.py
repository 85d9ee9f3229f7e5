"""CCIC: mixed images, guessed labels and embeddings kept apart (Boschini et al. 2022); its budgeted form is our own."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dietcl.errors import UserError
from dietcl.methods.base import Method, Phase, Reserve, Stretch, Sweep, Term
from dietcl.rng import numpy_generator
from dietcl.streams.options import Mix, PoolName

if TYPE_CHECKING:
    from torch import Tensor

    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch, Part
    from dietcl.streams.stream import TimeStep


class CCIC(Method):
    """Mixes labels, memory and guesses, keeps present and past apart, and asks the nearest remembered labels."""

    keeps = "row numbers and embeddings of all labels"
    cost = "10/3 (8/3 in the first time step and the last tenth of others); 1/3 per label so far at the end"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of CCIC."""

        augmentations: int = 3
        """Views of an unlabeled image whose predictions are averaged for its guess, and which are all learned from."""
        temperature: float = 0.5
        """Sharpens the averaged prediction (1: leaves it as it is)."""
        beta: float = 0.75
        """Parameter of the beta distribution that images are mixed by (0: not mixed)."""
        strength: float = 0.5
        """Weight of the guesses (0: none are made)."""
        cross: float = 0.5
        """Weight of keeping this time step's unlabeled images apart from the memory."""
        memory_weight: float = 1.0
        """Weight of the memory's cross-entropy."""
        triplet: bool = True
        """Draw embeddings of a class together and those of others apart."""
        neighbors: int = 3
        """Remembered labels that vote on a test image."""

        def __post_init__(self) -> None:
            for name in ("augmentations", "neighbors"):
                if getattr(self, name) < 1:
                    raise UserError(f"--{name} {getattr(self, name)}: give at least 1")
            if not 0 < self.temperature < math.inf:
                raise UserError(f"--temperature {self.temperature}: give a number above 0")
            for name in ("beta", "strength", "cross", "memory_weight"):
                if not 0 <= getattr(self, name) < math.inf:
                    raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: give a number from 0")

    def setup(self, net: "Net") -> None:
        import torch

        from dietcl.methods.pieces.store import Store

        self._store = Store()
        self._revealed = torch.zeros((), dtype=torch.int64)

    def begin_step(self, net: "Net", step: "TimeStep") -> None:
        self._revealed = self._revealed + len(step.labeled)
        self._store.clear()  # the encoder that embedded them is about to change

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        labels = int(self._revealed)
        if not labels:
            return None
        reserve = Reserve(forward=labels)
        first, last = self._price(step, cross=not step.is_first), self._price(step, cross=False)
        stretches: tuple[Stretch, ...] = (
            Phase(name="mixmatch", mix=self._mix(cross=not step.is_first), share=0.9, reserve=reserve, price=first),
            # At a tenth of the rate, about where the first phase's cosine ended.
            Phase(name="settle", mix=self._mix(cross=False), lr_scale=0.1, reserve=reserve, price=last),
            Sweep(name="embed", pool="memory"),
        )
        return stretches[len(done)] if len(done) < len(stretches) else None

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        import torch

        from dietcl.methods.pieces.triplet import batch_hard, push_apart

        yield from self._mixmatch(net, batch)
        if self.config.triplet and batch.supervised:
            features = net.encode(torch.cat([part.view("triplet") for part in batch.supervised]), "triplet")
            labels = [part.labels for part in batch.supervised if part.labels is not None]
            yield Term("triplet", batch_hard(features, torch.cat(labels)))
        new, past = batch.unlabeled, batch.memory
        if self.config.cross and phase.name == "mixmatch" and new is not None and past is not None:
            features = net.encode(torch.cat([new.view("cross"), past.view("cross")]), "cross")
            yield Term("cross", push_apart(features[: len(new)], features[len(new) :]), self.config.cross)

    def gather(self, net: "Net", sweep: Sweep, part: "Part") -> "dict[str, Tensor]":
        return part.with_values(net.features(part.images, "embed"))

    def absorb(self, net: "Net", sweep: Sweep, gathered: "dict[str, Tensor]") -> None:
        self._store.add(**gathered)

    def predict(self, net: "Net", images: "Tensor") -> "Tensor":
        from dietcl.methods.pieces.neighbors import vote

        if not len(self._store):
            return net.scores(images)
        return vote(net.features(images, "predict"), self._store, self.config.neighbors, net.classes)

    def state(self) -> "dict[str, Tensor]":
        return {**self._store.state(), "revealed": self._revealed}

    def load_state(self, state: "dict[str, Tensor]") -> None:
        self._store.load_state(state)
        self._revealed = state["revealed"].cpu()

    def _mix(self, cross: bool) -> Mix:
        is_used = self.config.strength > 0 or (cross and self.config.cross > 0)
        return Mix(unlabeled=1 / 3 if is_used else 0.0, labeled=1 / 3, memory=1 / 3, past_only=True)

    def _price(self, step: "TimeStep", cross: bool) -> float:
        """Return the passes of an image of a batch, on the average over its pools."""
        config = self.config
        has_memory, has_unlabeled = not step.is_first, self._mix(cross).unlabeled > 0 and len(step.unlabeled) > 0
        is_apart = cross and config.cross > 0 and has_memory and has_unlabeled
        guess: float = config.augmentations * 4 / 3 if config.strength else 0.0
        by_pool = [1.0 + config.triplet] * 2  # without a memory its share goes to the labels
        if has_unlabeled:
            by_pool.append(guess)
        return float(sum(by_pool) + 2 * is_apart) / len(by_pool)

    def _mixmatch(self, net: "Net", batch: "Batch") -> Iterator[Term]:
        """Yield the terms of images that are mixed across all pools, their targets with them."""
        import torch.nn.functional as F

        from dietcl.streams.batch import Part

        config = self.config
        views: dict[PoolName, Tensor] = {}
        targets: dict[PoolName, Tensor] = {}
        for part in batch.supervised:
            assert part.labels is not None
            views[part.pool] = part.view("mixmatch")
            hard = F.one_hot(part.labels, net.classes).to(views[part.pool])
            targets[part.pool] = (1 - part.smoothing) * hard + part.smoothing / net.classes
        if batch.unlabeled is not None and config.strength:
            views["unlabeled"], targets["unlabeled"] = self._guess(net, batch.unlabeled)
        images = mixed(views, config.beta, batch.key)
        targets = mixed(targets, config.beta, batch.key)
        logits = net.logits(*(Part(pool, values) for pool, values in images.items()))
        for (pool, target), scores in zip(targets.items(), logits, strict=True):
            if pool == "unlabeled":
                yield Term("unlabeled", (scores.softmax(1) - target).square().mean(), config.strength)
            else:
                weight = config.memory_weight if pool == "memory" else 1.0
                yield Term(pool, -(target * scores.log_softmax(1)).sum(1).mean(), weight)

    def _guess(self, net: "Net", part: "Part") -> "tuple[Tensor, Tensor]":
        """Return all views of all images, and for each the guess that its image's views agree on."""
        import torch

        number = self.config.augmentations
        views = torch.cat([part.view(f"guess {i}") for i in range(number)])
        # One row of views after the other: the mean over rows joins the views of one image, never two images.
        average = net.scores(views, "guess").softmax(1).unflatten(0, (number, len(part))).mean(0)
        return views, average.log().div(self.config.temperature).softmax(1).repeat(number, 1)


def mixed(values: "dict[PoolName, Tensor]", beta: float, key: "tuple[int | str, ...]") -> "dict[PoolName, Tensor]":
    """Mix every value with another of any pool, keeping at least half of its own; equal keys mix alike."""
    import numpy as np
    import torch

    if not beta:
        return values
    every = torch.cat(list(values.values()))
    generator = numpy_generator(*key, "mixmatch")
    partners = torch.from_numpy(generator.permutation(len(every))).to(every.device)
    own = generator.beta(beta, beta, len(every))
    share = torch.from_numpy(np.maximum(own, 1 - own)).to(every).view(-1, *(1 for _ in every.shape[1:]))
    every = share * every + (1 - share) * every[partners]
    return dict(zip(values, every.split([len(value) for value in values.values()]), strict=True))
