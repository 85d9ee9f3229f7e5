"""DualNet (Pham, Liu and Hoi 2021), semi-supervised: a slow network learns from views, a fast one from labels."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from dietcl.errors import UserError
from dietcl.methods.base import Method, Phase, Reserve, Stretch, Sweep, Term
from dietcl.rng import number
from dietcl.streams.options import Mix, PoolName

if TYPE_CHECKING:
    import torch

    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch, Part
    from dietcl.streams.stream import TimeStep

_OFF_DIAGONAL = 2e-3
_SUPERVISED = 2  # updates with labels at the end of a labeled cycle


class DualNet(Method):
    """Learns slow features from views by look-ahead, modulated by a fast branch that the labels train."""

    keeps = "row numbers and logits of all labels; fast branch and projector"
    cost = "2 in an update on views, 1 in one on labels (a third of the batch rests); 1/3 once for each label"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of DualNet."""

        beta: float = 0.05
        """Share of the way that the encoder keeps after a look-ahead (1: plain updates)."""
        outer: int = 2
        """Look-aheads in a cycle."""
        inner: int = 2
        """Updates on views in a look-ahead."""
        soft_weight: float = 10.0
        """Weight of the divergence from stored logits, a mean over classes too, so that many classes weaken it."""
        temperature: float = 2.0
        """Divides the logits that are compared with stored ones."""
        threshold: float = 0.5
        """Probability that a cycle draws from the labeled images and not from the unlabeled ones."""
        strategy: Literal["task_free", "task_aware"] = "task_free"
        """task_aware: the loss on this time step's labels is restricted to the classes revealed in it."""
        width: int = 2048
        """Number of features that the projector makes."""

        def __post_init__(self) -> None:
            if not 0 <= self.beta <= 1:
                raise UserError(f"--beta {self.beta}: give a share from 0 to 1")
            for option in ("outer", "inner", "width"):
                if getattr(self, option) < 1:
                    raise UserError(f"--{option} {getattr(self, option)}: give at least 1")
            if not 0 <= self.soft_weight < math.inf:
                raise UserError(f"--soft-weight {self.soft_weight}: give a weight from 0")
            if not 0 < self.temperature < math.inf:
                raise UserError(f"--temperature {self.temperature}: give a number above 0")
            if not 0 < self.threshold <= 1:
                raise UserError(f"--threshold {self.threshold}: give a probability above 0, or no label is learned")

    def __init__(self, config: Config) -> None:
        from dietcl.methods.pieces.store import Store

        super().__init__(config)
        self._soft = Store()
        self._anchor: dict[str, torch.Tensor] = {}  # the encoder where the present look-ahead began
        self._is_due = False  # whether the present update is the last of its look-ahead
        self._cycle: tuple[Any, int, int] = (None, 0, 0)  # where `_place` last stood, so that it need not begin anew

    def setup(self, net: "Net") -> None:
        from dietcl.methods.pieces.barlow import projector
        from dietcl.methods.pieces.fast_branch import FastBranch, forward_flops

        grid, patch = net.grid
        self._dim, self._branch_flops = net.dim, forward_flops(net.dim, grid, patch)
        self._branch = net.build(lambda: FastBranch(net.dim, patch), "branch")
        self._projector = net.build(lambda: projector(net.dim, self.config.width), "projector")

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        labels = len(step.labeled) if self.config.soft_weight else 0
        if not done:
            if step.is_first and len(step.labeled) + len(step.unlabeled) < 2:
                return None  # a single image has no views to tell apart, nor classes
            flops = self._branch_flops + 2 * self._dim * step.seen_classes
            # Among its own classes alone, a new label is set against old ones only if it is in the memory, too.
            past_only = step.is_first or self.config.strategy == "task_free"
            mix = Mix(unlabeled=1 / 3, labeled=1 / 3, memory=1 / 3, past_only=past_only)
            reserve = Reserve(forward=labels, flops=labels * flops)
            is_split = len(step.unlabeled) > 0 and step.seen_classes > 0  # a third of the batch waits for its turn
            return Phase(name="cycles", mix=mix, reserve=reserve, price=4 / 3 if is_split else 2.0)
        return Sweep(name="soft targets", pool="labeled") if labels and len(done) == 1 else None

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        is_labeled, place = self._place(batch.key, [part.pool for part in batch.parts])
        if place < self.config.outer * self.config.inner:
            current = batch.labeled if is_labeled else batch.unlabeled
            yield self._views(net, [part for part in (current, batch.memory) if part is not None])
        else:
            yield from self._labels(net, batch)

    def after_update(self, net: "Net", phase: Phase) -> None:
        if self._is_due:
            self._look_back(net)

    def end_phase(self, net: "Net", phase: Phase) -> None:
        self._look_back(net)

    def gather(self, net: "Net", sweep: Sweep, part: "Part") -> "dict[str, torch.Tensor]":
        import torch

        with torch.no_grad():
            return part.with_values(self._logits(net, part.images, "soft targets"))

    def absorb(self, net: "Net", sweep: Sweep, gathered: "dict[str, torch.Tensor]") -> None:
        self._soft.add(**gathered)

    def predict(self, net: "Net", images: "torch.Tensor") -> "torch.Tensor":
        return self._logits(net, images, "predict")

    def modules(self) -> "dict[str, torch.nn.Module]":
        return {"branch": self._branch, "projector": self._projector}

    def state(self) -> "dict[str, torch.Tensor]":
        return self._soft.state() | self._anchor

    def load_state(self, state: "dict[str, torch.Tensor]") -> None:
        self._soft.load_state(state)
        self._anchor = {name: value for name, value in state.items() if name.startswith("encoder.")}

    def turn(self, net: "Net", key: "tuple[int | str, ...]", pools: "Collection[PoolName]") -> str:
        _, place = self._place(key, pools)
        # What views do to the moments must not leak into the labels' updates, which no look-ahead takes back.
        if place >= self.config.outer * self.config.inner:
            return "labels"
        if not self._anchor:
            self._anchor = {name: v for name, v in net.copy().items() if name.startswith("encoder.")}
        self._is_due = (place + 1) % self.config.inner == 0
        return "views"

    def _place(self, key: "tuple[int | str, ...]", pools: "Collection[PoolName]") -> tuple[bool, int]:
        """Return whether the update's cycle is a labeled one, and its place in the cycle."""
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

    def _views(self, net: "Net", parts: "list[Part]") -> Term:
        from dietcl.methods.pieces.barlow import barlow_twins, correlation_flops, two_views

        features = net.encode(two_views(parts), "views")
        one, two = net.run(self._projector, features, purpose="projector").chunk(2)
        net.charge("projector", correlation_flops(one))
        # One optimizer serves both losses, so this one must not grow with the number of features.
        return Term("views", barlow_twins(one, two, _OFF_DIAGONAL, 1 / self.config.width))

    def _labels(self, net: "Net", batch: "Batch") -> Iterator[Term]:
        import torch

        current, memory = batch.labeled, batch.memory
        if memory is not None:  # a stored target belongs to one image, so none are mixed
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
            place = self._soft.find(memory.rows)
            if self.config.soft_weight and bool((place >= 0).any()):
                soft = self._soft.values[place[place >= 0].to(self._soft.values.device)]
                kept = (place >= 0).to(logits.device)
                yield Term("soft targets", self._divergence(soft, logits[kept]), self.config.soft_weight)

    def _logits(self, net: "Net", images: "torch.Tensor", purpose: str) -> "torch.Tensor":
        from dietcl.methods.pieces.fast_branch import STAGES

        maps = net.stages(images, STAGES, purpose)
        return net.classify(net.run(self._branch, images, *maps, purpose="fast"), "head")

    def _divergence(self, soft: "torch.Tensor", logits: "torch.Tensor") -> "torch.Tensor":
        """Return the mean over images and classes of the divergence from stored logits, which lack later classes."""
        is_new = soft.isnan()
        soft, logits = (
            values.masked_fill(is_new, -math.inf) / self.config.temperature
            for values in (soft, logits[:, : soft.shape[1]])
        )
        log_q, log_p = soft.log_softmax(1), logits.log_softmax(1)
        terms: torch.Tensor = log_q.exp() * (log_q - log_p).masked_fill(is_new, 0.0)
        return terms[~is_new].mean()

    def _look_back(self, net: "Net") -> None:
        """End a look-ahead, if one is under way: go back most of the way to where it began."""
        net.blend(self._anchor, self.config.beta)
        self._anchor, self._is_due = {}, False
