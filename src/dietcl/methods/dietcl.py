"""DietCL (Zhang et al., ICLR 2024, section 4 and Algorithm 1) and the paper's baselines in one or two stages."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dietcl.methods.base import Batch, Mix, Net, Phase, PlannedMethod, Segment, Term, TimeStep
from dietcl.methods.method_options import joint_limits
from dietcl.methods.semi_supervised_options import DietCLOptions, JointOptions, OneStageOptions, TwoStageOptions


class DietCL(PlannedMethod):
    """DietCL: joint learning from three pools, then from the balanced memory alone."""

    Config = DietCLOptions
    config: DietCLOptions

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        if step.is_first or not self.config.memory:
            return [Phase(name="joint", mix=self._joint_mix(step.is_first))]
        updates, share = joint_limits(self.config.threshold)
        memory = Mix(memory=1, by_time_step=self.config.balance_memory)
        return [
            Phase(name="joint", mix=self._joint_mix(), updates=updates, share=share),
            Phase(name="balance", mix=memory, lr_scale=self.config.balance_lr),
        ]

    def next_phase(self, step: TimeStep, done: tuple[Segment, ...], remaining: float) -> Segment | None:
        phase = super().next_phase(step, done, remaining)
        if self.config.restart or not isinstance(phase, Phase) or step.is_first or not self.config.memory:
            return phase
        if done and isinstance(done[0], Phase):
            return replace(phase, lr_scale=1.0, schedule=(done[0].schedule[1], 1.0))
        # What part of a budget in seconds some updates will take is not known: there they take the whole cosine.
        end = phase.share if math.isinf(remaining) else min(phase.share, phase.updates / (remaining or 1.0))
        return replace(phase, schedule=(0.0, end))

    def losses(self, net: Net, phase: Phase, batch: Batch) -> list[Term]:
        if self.config.reconstruct == "labeled":
            batch = self._split_labeled(phase, batch)
        parts, terms = batch.supervised, []
        for part, logits in zip(parts, net.logits(*parts), strict=True):
            if part.pool == "memory":
                terms.append(Term("memory", part.cross_entropy(logits)))
            else:
                only = batch.classes if self.config.mask_classes else None
                terms.append(Term("masked", part.cross_entropy(logits, only)))
        if batch.unlabeled is not None:
            terms.append(Term("reconstruct", net.reconstruct(batch.unlabeled, batch.key), self.config.alpha))
        return terms

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


class TwoStage(PlannedMethod):
    """Pre-training by reconstruction, then fine-tuning, in every time step; OneStage is the second stage alone."""

    Config = TwoStageOptions
    config: TwoStageOptions | OneStageOptions

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        phases = []
        if self.config.pretrain and len(step.unlabeled):
            # Without any label so far there is nothing to save the budget for.
            share = self.config.pretrain if step.seen_classes else 1.0
            phases.append(Phase(name="reconstruct", mix=Mix(unlabeled=1), share=share))
        phases.append(Phase(name="fine-tune", mix=Mix(memory=1), lr_scale=self.config.fine_tune_lr))
        return phases

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        if batch.unlabeled is not None:
            yield Term("reconstruct", net.reconstruct(batch.unlabeled, batch.key))
        else:
            yield Term("memory", batch.cross_entropy(net.logits(*batch.supervised)))


class Joint(TwoStage):
    """Both stages on the union of all time steps, the paper's upper bound."""

    Config = JointOptions
    learns = "union"
