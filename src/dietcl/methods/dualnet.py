"""DualNet (Pham, Liu and Hoi 2021), semi-supervised: a slow network learns from views, a fast one from labels."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dietcl.methods.base import Batch, Mix, Net, Part, Phase, Reserve, Segment, Sweep, Term, TimeStep
from dietcl.methods.pieces.barlow import barlow_twins, correlation_flops, projector, two_views
from dietcl.methods.pieces.store import StoringMethod
from dietcl.methods.semi_supervised_options import DualNetOptions
from dietcl.rng import number
from dietcl.streams.options import PoolName

_OFF_DIAGONAL = 2e-3
STAGES = 4  # of the fast branch
NARROWING = 8  # channels of its maps for each channel within a stage
_SUPERVISED = 2  # updates with labels at the end of a labeled cycle


class FastBranch(nn.Module):
    """Multiplies the maps of a slow encoder stage by stage; initially it returns the last one unchanged."""

    def __init__(self, dim: int, patch: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, dim, patch, stride=patch)
        self.stages = nn.ModuleList(_stage(dim) for _ in range(STAGES))

    def forward(self, images_BCHW: Tensor, *slow_BDGG: Tensor) -> Tensor:
        """Return features [B, dim]: the mean over positions of the last modulated map."""
        fast_BDGG: Tensor = self.stem(images_BCHW)
        for stage, slow in zip(self.stages, slow_BDGG, strict=True):
            fast_BDGG = slow * (1 + stage(fast_BDGG.relu()))
        return fast_BDGG.mean(dim=(2, 3))


def forward_flops(dim: int, grid: int, patch: int) -> int:
    """Return the FLOPs of the branch for one image without gradient."""
    stem, narrow = 3 * patch**2 * dim, max(1, dim // NARROWING)
    return 2 * grid**2 * (stem + STAGES * (9 + 1) * dim * narrow)


def _stage(dim: int) -> nn.Module:
    """Return a convolution to few channels and one back to all, initialized to zero."""
    narrow = max(1, dim // NARROWING)
    back = nn.Conv2d(narrow, dim, 1)
    for parameter in back.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Conv2d(dim, narrow, 3, padding=1), back)


class DualNet(StoringMethod):
    """A slow encoder trained on views and a fast branch trained on labels."""

    Config = DualNetOptions
    config: DualNetOptions
    _ends_look_ahead = False  # whether this update is the last of its look-ahead
    _cycle: tuple[Any, int, int] = (None, 0, 0)  # last result of `_cycle_position`, to continue from

    def setup(self, net: Net) -> None:
        self._anchor: dict[str, Tensor] = {}  # the encoder at the start of this look-ahead
        grid, patch = net.grid
        self._dim, self._branch_flops = net.dim, forward_flops(net.dim, grid, patch)
        self._branch = net.build(lambda: FastBranch(net.dim, patch), "branch")
        self._projector = net.build(lambda: projector(net.dim, self.config.width), "projector")

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        if step.is_first and len(step.labeled) + len(step.unlabeled) < 2:
            return []  # a single image gives neither pairs of views nor classes
        labels = len(step.labeled) if self.config.soft_weight else 0
        flops = self._branch_flops + 2 * self._dim * step.seen_classes
        # If new labels compete with each other only, they must be in the memory to compete with old ones.
        past_only = step.is_first or self.config.strategy == "task_free"
        mix = Mix(unlabeled=1 / 3, labeled=1 / 3, memory=1 / 3, past_only=past_only)
        # With both kinds of images, an update leaves a third of the batch unused.
        price = 4 / 3 if len(step.unlabeled) and step.seen_classes else 2.0
        cycles = Phase(name="cycles", mix=mix, reserve=Reserve(forward=labels, flops=labels * flops), price=price)
        return [cycles, Sweep(name="soft targets", pool="labeled")] if labels else [cycles]

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        is_labeled, position = self._cycle_position(batch.key, [part.pool for part in batch.parts])
        if position < self.config.outer * self.config.inner:
            current = batch.labeled if is_labeled else batch.unlabeled
            images = two_views([part for part in (current, batch.memory) if part is not None])
            projections = net.run(self._projector, net.encode(images, "views"), purpose="projector")
            one, two = projections.chunk(2)
            net.charge("projector", correlation_flops(one))
            # One optimizer serves both losses, so this one must not grow with the number of features.
            yield Term("views", barlow_twins(one, two, _OFF_DIAGONAL, 1 / self.config.width))
        else:
            yield from self._labels(net, batch)

    def after_update(self, net: Net, phase: Phase) -> None:
        if self._ends_look_ahead:
            self.end_phase(net, phase)

    def end_phase(self, net: Net, phase: Phase) -> None:
        # A look-ahead ends by going back most of the way to its start.
        net.blend(self._anchor, self.config.beta)
        self._anchor, self._ends_look_ahead = {}, False

    def gather(self, net: Net, sweep: Sweep, part: Part) -> dict[str, Tensor]:
        with torch.no_grad():
            return part.with_values(self._logits(net, part.images, "soft targets"))

    def predict(self, net: Net, images: Tensor) -> Tensor:
        return self._logits(net, images, "predict")

    def modules(self) -> dict[str, nn.Module]:
        return {"branch": self._branch, "projector": self._projector}

    def state(self) -> dict[str, Tensor]:
        return self.store.state() | self._anchor

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.store.load_state(state)
        self._anchor = {name: value for name, value in state.items() if name.startswith("encoder.")}

    def predict_modules(self) -> dict[str, nn.Module]:
        return {"branch": self._branch}

    def predict_state(self) -> dict[str, Tensor]:
        return {}

    def optimizer_name(self, net: Net, key: tuple[int | str, ...], pools: Collection[PoolName]) -> str:
        _, position = self._cycle_position(key, pools)
        # Updates on labels have moments of their own: no look-ahead takes them back.
        if position >= self.config.outer * self.config.inner:
            return "labels"
        if not self._anchor:
            self._anchor = {name: v for name, v in net.copy().items() if name.startswith("encoder.")}
        self._ends_look_ahead = (position + 1) % self.config.inner == 0
        return "views"

    def _cycle_position(self, key: tuple[int | str, ...], pools: Collection[PoolName]) -> tuple[bool, int]:
        """Return whether the update's cycle is a labeled one, and its position in the cycle."""
        seed, t, _, update, _ = key
        only_labels, only_views = "unlabeled" not in pools, not {"labeled", "memory"} & set(pools)
        known, start, cycle = self._cycle
        stream = (seed, t, only_labels, only_views)
        if known != stream or int(update) < start:
            start = cycle = 0
        while True:
            coin = number(seed, t, cycle, "cycle") / 2**64
            is_labeled = not only_views and (only_labels or coin < self.config.threshold)
            length = self.config.outer * self.config.inner + _SUPERVISED * is_labeled
            if int(update) < start + length:
                self._cycle = (stream, start, cycle)
                return is_labeled, int(update) - start
            start, cycle = start + length, cycle + 1

    def _labels(self, net: Net, batch: Batch) -> Iterator[Term]:
        current, memory = batch.labeled, batch.memory
        if memory is not None:  # stored targets are of single images, so these are not mixed
            memory = replace(memory, images=memory.view("replay"), partners=None, weight=None)
        parts = [part for part in (current, memory) if part is not None]
        logits = self._logits(net, torch.cat([part.images for part in parts]), "labels")
        if current is not None:
            only = batch.classes if self.config.strategy == "task_aware" else None
            yield Term("labeled", current.cross_entropy(logits[: len(current)], only))
        if memory is not None:
            logits = logits[-len(memory) :]
            yield Term("memory", memory.cross_entropy(logits))
            assert memory.rows is not None
            is_stored = self.store.find(memory.rows) >= 0
            if self.config.soft_weight and bool(is_stored.any()):
                soft = self.store.values_of(memory.rows[is_stored])
                divergence = self._divergence(soft, logits[is_stored.to(logits.device)])
                yield Term("soft targets", divergence, self.config.soft_weight)

    def _logits(self, net: Net, images: Tensor, purpose: str) -> Tensor:
        maps = net.stages(images, STAGES, purpose)
        return net.classify(net.run(self._branch, images, *maps, purpose="fast"), "head")

    def _divergence(self, soft: Tensor, logits: Tensor) -> Tensor:
        """Return the mean over images and classes of the divergence from stored logits, which lack later classes."""
        is_new = soft.isnan()
        both = (soft, logits[:, : soft.shape[1]])
        scaled = [values.masked_fill(is_new, -math.inf) / self.config.temperature for values in both]
        log_q, log_p = (values.log_softmax(1) for values in scaled)
        terms: Tensor = log_q.exp() * (log_q - log_p).masked_fill(is_new, 0.0)
        return terms[~is_new].mean()
