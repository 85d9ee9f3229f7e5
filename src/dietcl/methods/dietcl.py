"""DietCL (Zhang et al., ICLR 2024, section 4 and Algorithm 1)."""

from collections.abc import Iterator
from dataclasses import replace

from dietcl.methods.base import Batch, Method, Mix, Net, Phase, Segment, Term, TimeStep
from dietcl.methods.method_options import joint_limits
from dietcl.methods.semi_supervised_options import DietCLOptions


class DietCL(Method):
    """DietCL: joint learning from three pools, then from the balanced memory alone."""

    Config = DietCLOptions
    config: DietCLOptions

    def next_phase(self, step: TimeStep, done: tuple[Segment, ...], remaining: float) -> Segment | None:
        if step.is_first:
            phases = [Phase(name="joint", mix=self._joint_mix(first=True))]
        elif not self.config.memory:
            phases = [Phase(name="joint", mix=self._joint_mix())]
        else:
            updates, share = joint_limits(self.config.threshold)
            memory = Mix(memory=1, by_time_step=self.config.balance_memory)
            phases = [
                Phase(name="joint", mix=self._joint_mix(), updates=updates, share=share),
                Phase(name="balance", mix=memory, lr_scale=self.config.balance_lr),
            ]
        return phases[len(done)] if len(done) < len(phases) else None

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        if self.config.reconstruct == "labeled":
            batch = self._split_labeled(phase, batch)
        parts = batch.supervised
        for part, logits in zip(parts, net.logits(*parts), strict=True):
            if part.pool == "memory":
                yield Term("memory", part.cross_entropy(logits))
            else:
                only = batch.classes if self.config.mask_classes else None
                yield Term("masked", part.cross_entropy(logits, only))
        if batch.unlabeled is not None:
            yield Term("reconstruct", net.reconstruct(batch.unlabeled, batch.key), self.config.alpha)

    def _joint_mix(self, first: bool = False) -> Mix:
        config = self.config
        unlabeled, labeled, memory = config.unlabeled, config.labeled, config.memory
        if first:  # the memory would only repeat this time step's labels
            labeled, memory = labeled + memory, 0.0
        if config.reconstruct == "labeled":
            unlabeled, labeled = 0.0, unlabeled + labeled
        by_time_step = config.balance_memory and not first
        return Mix(unlabeled=unlabeled, labeled=labeled, memory=memory, by_time_step=by_time_step)

    def _split_labeled(self, phase: Phase, batch: Batch) -> Batch:
        """Return the batch with its last labeled images, cropped but not mixed, as the ones to reconstruct."""
        part = batch.labeled
        if part is None or not self.config.unlabeled:
            return batch
        # As many as the unlabeled images would be; halves are rounded up, as when a batch is divided over pools.
        number = int(len(part) * self.config.unlabeled / phase.mix.labeled + 0.5 + 1e-9)
        split = len(part) - number
        last = part.take(slice(split, len(part)))
        unlabeled = replace(last, images=last.view("reconstruct")) if number else None
        return replace(batch, labeled=part.take(slice(0, split)) if split else None, unlabeled=unlabeled)
