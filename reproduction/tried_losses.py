"""Ideas that were tried on Larder's batches: other partners, stronger views, and labels among some classes only."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dietcl import PRESETS, Phase, Term
from dietcl.methods.base import Batch, Net, Part, TimeStep
from dietcl.methods.larder import LarderMethod

AUGMENTATION = PRESETS["nano"].augmentation  # images are mixed alike at every size


class LarderMixed(LarderMethod):
    """Larder that mixes images across labels and guesses, where every pool is otherwise mixed within itself."""

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        if batch.larder is None:
            yield from super().losses(net, phase, batch)
            return
        parts, generator = batch.supervised, np.random.default_rng([int(number) for number in batch.key])
        images = torch.cat([part.view("own") for part in parts])  # not mixed yet
        partner = torch.from_numpy(generator.permutation(len(images))).to(images.device)
        images, weight = mix(images, partner, generator)
        own_images = images.split([len(part) for part in parts])
        mixed = [replace(part, images=own) for part, own in zip(parts, own_images, strict=True)]
        log_p = torch.cat([logits.log_softmax(1) for logits in net.logits(*mixed)])
        prior = torch.cat([self._prior(part, log_p.shape[1]) for part in parts]).to(log_p)
        yield Term(self.term, mixed_loss(log_p, prior, partner, weight, parts[0].smoothing))

    def _prior(self, part: Part, classes: int) -> Tensor:
        """Return what is believed of each image before the network is asked: of a label, that it is right."""
        assert part.rows is not None
        assert part.labels is not None
        return self.larder.beliefs(part.rows, classes) if part.pool == "larder" else one_hot(part.labels, classes)


def mix(images: Tensor, partner: Tensor, generator: np.random.Generator) -> tuple[Tensor, float]:
    """Mix every image with a partner by mixup or cutmix, as batches are; returns also the share that is its own."""
    is_cut = generator.random() < 0.5
    parameter = AUGMENTATION.cutmix if is_cut else AUGMENTATION.mixup
    weight, others = float(generator.beta(parameter, parameter)), images[partner]
    if not is_cut:
        return images * weight + others * (1 - weight), weight
    height, width = images.shape[-2:]
    side = (1 - weight) ** 0.5
    y, x = int(generator.integers(height)), int(generator.integers(width))
    half_h, half_w = int(height * side / 2), int(width * side / 2)
    top, bottom = max(0, y - half_h), min(height, y + half_h)
    left, right = max(0, x - half_w), min(width, x + half_w)
    images = images.clone()
    images[:, :, top:bottom, left:right] = others[:, :, top:bottom, left:right]
    return images, 1 - (bottom - top) * (right - left) / (height * width)


def mixed_loss(log_p: Tensor, prior: Tensor, partner: Tensor, weight: float, smoothing: float) -> Tensor:
    """Return the mean loss that a larder has, where partners are any images and of labels all is certain."""
    answer = log_p.detach()
    own, mixed_in = (
        (before.log() + w * answer).softmax(1) for before, w in ((prior, weight), (prior[partner], 1 - weight))
    )
    loss = -((weight * own + (1 - weight) * mixed_in) * log_p).sum(1)
    return ((1 - smoothing) * loss - smoothing * log_p.mean(1)).mean()


class LarderStrong(LarderMethod):
    """Larder that learns guesses on strong views, which are not mixed, as FixMatch does."""

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        if (part := batch.larder) is not None:
            assert part.weight is not None
            strong = part.view("strong", strong=True)
            part = replace(part, images=strong, partners=part.labels, weight=torch.ones_like(part.weight))
            batch = replace(batch, larder=part)
        yield from super().losses(net, phase, batch)


class LarderMasked(LarderMethod):
    """Larder that learns labels of the present time step among its classes only, as DietCL does."""

    def setup(self, net: Net) -> None:
        super().setup(net)
        self.present = torch.zeros(0, dtype=torch.int64)

    def begin_step(self, net: Net, step: TimeStep) -> None:
        super().begin_step(net, step)
        self.present = torch.from_numpy(step.labeled)

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        losses = []
        for part, logits in zip(batch.supervised, net.logits(*batch.supervised), strict=True):
            if part.pool == "larder":
                losses.append(self.larder.cross_entropy(part, logits))
            else:
                assert part.rows is not None
                losses.append(masked_loss(part, logits, torch.isin(part.rows, self.present), batch.classes))
        yield Term(self.term, batch.mean(losses))

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"present": self.present}

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        self.present = state["present"].cpu()


def masked_loss(part: Part, logits: Tensor, is_new: Tensor, classes: Tensor) -> Tensor:
    """Return the mean loss of labels, of which new ones, also where they are mixed in, compete with some classes."""
    assert part.labels is not None
    assert part.partners is not None
    assert part.weight is not None
    is_new, log_p, log_own = is_new.to(logits.device), logits.log_softmax(1), logits[:, classes].log_softmax(1)
    place = torch.zeros(logits.shape[1], dtype=torch.int64, device=logits.device)
    place[classes] = torch.arange(len(classes), device=logits.device)

    def loss(labels: Tensor, is_masked: Tensor) -> Tensor:
        right = torch.where(
            is_masked, log_own.gather(1, place[labels][:, None])[:, 0], log_p.gather(1, labels[:, None])[:, 0]
        )
        mean = torch.where(is_masked, log_own.mean(1), log_p.mean(1))
        return -(1 - part.smoothing) * right - part.smoothing * mean

    # Partners are the same images in reverse.
    own, mixed_in = loss(part.labels, is_new), loss(part.partners, is_new.flip(0))
    return (part.weight * own + (1 - part.weight) * mixed_in).mean()
