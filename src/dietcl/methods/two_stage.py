"""TwoStage: pre-training by reconstruction, then fine-tuning, in every time step (Zhang et al., ICLR 2024)."""

from collections.abc import Iterator

from dietcl.methods.base import Batch, Method, Mix, Net, Phase, Segment, Term, TimeStep
from dietcl.methods.semi_supervised_options import JointOptions, OneStageOptions, TwoStageOptions


class TwoStage(Method):
    """Reconstruction, then fine-tuning; OneStage is the second stage alone."""

    Config = TwoStageOptions
    config: TwoStageOptions | OneStageOptions

    def next_phase(self, step: TimeStep, done: tuple[Segment, ...], remaining: float) -> Segment | None:
        phases = []
        if self.config.pretrain and len(step.unlabeled):
            # Without any label so far there is nothing to save the budget for.
            share = self.config.pretrain if step.seen_classes else 1.0
            phases.append(Phase(name="reconstruct", mix=Mix(unlabeled=1), share=share))
        phases.append(Phase(name="fine-tune", mix=Mix(memory=1), lr_scale=self.config.fine_tune_lr))
        return phases[len(done)] if len(done) < len(phases) else None

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        if batch.unlabeled is not None:
            yield Term("reconstruct", net.reconstruct(batch.unlabeled, batch.key))
        else:
            yield Term("memory", batch.cross_entropy(net.logits(*batch.supervised)))


class Joint(TwoStage):
    """Both stages on the union of all time steps, the paper's upper bound."""

    Config = JointOptions
    learns = "union"
