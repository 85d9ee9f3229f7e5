"""CCIC: mixed images, guessed labels and separated embeddings (Boschini et al. 2022); adapted to a budget."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dietcl.methods.base import Batch, Mix, Net, Part, Phase, Reserve, Segment, Sweep, Term, TimeStep
from dietcl.methods.pieces.store import StoringMethod, vote
from dietcl.methods.semi_supervised_options import CCICOptions
from dietcl.rng import numpy_generator
from dietcl.streams.options import PoolName

MARGIN = 1.0  # of the triplet losses; embeddings are normalized, so that distances are from 0 to 2


class CCIC(StoringMethod):
    """Continual interpolation consistency."""

    Config = CCICOptions
    config: CCICOptions
    _revealed = 0  # number of labels so far

    def begin_step(self, net: Net, step: TimeStep) -> None:
        self._revealed += len(step.labeled)
        self.store.clear()  # the encoder that embedded them is about to change

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        if not self._revealed:
            return []
        reserve = Reserve(forward=self._revealed)
        first, last = self._price(step, cross=not step.is_first), self._price(step, cross=False)
        return [
            Phase(name="mixmatch", mix=self._mix(cross=not step.is_first), share=0.9, reserve=reserve, price=first),
            # At a tenth of the rate, about where the first phase's cosine ended.
            Phase(name="settle", mix=self._mix(cross=False), lr_scale=0.1, reserve=reserve, price=last),
            Sweep(name="embed", pool="memory"),
        ]

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        yield from self._mixmatch(net, batch)
        if self.config.triplet and batch.supervised:
            features = net.encode(torch.cat([part.view("triplet") for part in batch.supervised]), "triplet")
            labels = [part.labels for part in batch.supervised if part.labels is not None]
            yield Term("triplet", batch_hard(features, torch.cat(labels)))
        new, past = batch.unlabeled, batch.memory
        if self.config.cross and phase.name == "mixmatch" and new is not None and past is not None:
            features = net.encode(torch.cat([new.view("cross"), past.view("cross")]), "cross")
            yield Term("cross", push_apart(features[: len(new)], features[len(new) :]), self.config.cross)

    def predict(self, net: Net, images: Tensor) -> Tensor:
        if not len(self.store):
            return net.scores(images)
        return vote(net.features(images, "predict"), self.store, self.config.neighbors, net.classes)

    def state(self) -> dict[str, Tensor]:
        return self.store.state() | {"revealed": torch.tensor(self._revealed)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.store.load_state(state)
        self._revealed = int(state["revealed"])

    def _mix(self, cross: bool) -> Mix:
        is_used = self.config.strength > 0 or (cross and self.config.cross > 0)
        return Mix(unlabeled=1 / 3 if is_used else 0.0, labeled=1 / 3, memory=1 / 3, past_only=True)

    def _price(self, step: TimeStep, cross: bool) -> float:
        """Return the passes of an image of a batch, on the average over its pools."""
        config = self.config
        by_pool = [1.0 + config.triplet] * 2  # without a memory, the labels get its share
        if self._mix(cross).unlabeled and len(step.unlabeled):
            by_pool.append(config.augmentations * 4 / 3 if config.strength else 0.0)
            if cross and config.cross:
                return (sum(by_pool) + 2) / 3
        return sum(by_pool) / len(by_pool)

    def _mixmatch(self, net: Net, batch: Batch) -> Iterator[Term]:
        """Yield the terms of images that are mixed across all pools, their targets with them."""
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
        logits = net.logits(*(Part(pool, images) for pool, images in mixed(views, config.beta, batch.key).items()))
        for (pool, target), scores in zip(mixed(targets, config.beta, batch.key).items(), logits, strict=True):
            if pool == "unlabeled":
                yield Term("unlabeled", (scores.softmax(1) - target).square().mean(), config.strength)
            else:
                weight = config.memory_weight if pool == "memory" else 1.0
                yield Term(pool, -(target * scores.log_softmax(1)).sum(1).mean(), weight)

    def _guess(self, net: Net, part: Part) -> tuple[Tensor, Tensor]:
        """Return all views of all images, and for each the averaged and sharpened prediction of its image."""
        number = self.config.augmentations
        views = torch.cat([part.view(f"guess {i}") for i in range(number)])
        # All images of one view, then of the next: the mean over views is of one image, never of two.
        average = net.scores(views, "guess").softmax(1).unflatten(0, (number, len(part))).mean(0)
        return views, average.log().div(self.config.temperature).softmax(1).repeat(number, 1)


def mixed(values: dict[PoolName, Tensor], beta: float, key: tuple[int | str, ...]) -> dict[PoolName, Tensor]:
    """Mix every value with another of any pool, with a weight of at least one half; equal keys give equal mixes."""
    if not beta:
        return values
    every = torch.cat(list(values.values()))
    generator = numpy_generator(*key, "mixmatch")
    partners = torch.from_numpy(generator.permutation(len(every))).to(every.device)
    own = generator.beta(beta, beta, len(every))
    share = torch.from_numpy(np.maximum(own, 1 - own)).to(every).view(-1, *(1 for _ in every.shape[1:]))
    every = share * every + (1 - share) * every[partners]
    return dict(zip(values, every.split([len(value) for value in values.values()]), strict=True))


def batch_hard(features_BD: Tensor, labels_B: Tensor) -> Tensor:
    """Return the mean loss of images compared with the farthest of their class and the nearest of another class."""
    points_BD = F.normalize(features_BD)
    cosine_BB = (points_BD @ points_BD.T).detach()
    same_BB = labels_B[:, None] == labels_B
    own_BB = same_BB & ~torch.eye(len(labels_B), dtype=torch.bool, device=labels_B.device)
    farthest_B = cosine_BB.masked_fill(~own_BB, torch.inf).argmin(1)
    nearest_B = cosine_BB.masked_fill(same_BB, -torch.inf).argmax(1)
    gap_B = _distance(points_BD, points_BD, farthest_B) - _distance(points_BD, points_BD, nearest_B)
    counts_B = own_BB.any(1) & ~same_BB.all(1)  # images that have both in the batch
    return ((gap_B + MARGIN).relu() * counts_B).sum() / counts_B.sum().clamp(min=1)


def push_apart(features_BD: Tensor, others_MD: Tensor) -> Tensor:
    """Return the mean over images of how much the nearest of some others is nearer than the margin."""
    points_BD, others_MD = F.normalize(features_BD), F.normalize(others_MD)
    nearest_B = (points_BD @ others_MD.T).detach().argmax(1)
    return (MARGIN - _distance(points_BD, others_MD, nearest_B)).relu().mean()


def _distance(points_BD: Tensor, others_MD: Tensor, which_B: Tensor) -> Tensor:
    """Return each point's distance from one of the others; equal ones have a gradient of zero."""
    # A product selects, because the gradient of an index is summed in no fixed order on some devices.
    chosen_BD = F.one_hot(which_B, len(others_MD)).to(others_MD) @ others_MD
    return ((points_BD - chosen_BD).square().sum(1) + 1e-16).sqrt()
