"""Cross-entropy on replayed labels: experience replay, ER-ACE and GDumb; and without replay: fine-tuning."""

from collections.abc import Iterator, Sequence

from dietcl.methods.base import Batch, Mix, Net, Phase, PlannedMethod, Segment, Term, TimeStep
from dietcl.methods.method_options import joint_limits
from dietcl.methods.supervised_options import ERACEOptions, EROptions, GDumbOptions, NaiveOptions

COSINE_SCALE = 10.0  # of the head of ER-ACE


class ER(PlannedMethod):
    """Experience replay (Chaudhry et al. 2019)."""

    Config = EROptions
    config: EROptions
    term = "replay"

    def setup(self, net: Net) -> None:
        # DietCL reconstructs a third of its images.
        saved = 1 - net.relative_flops("reconstruct") if self.config.dietcl_flops else 0.0
        self._saved_share = max(0.0, saved) / 3

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        mix = Mix(labeled=1 / 2, memory=1 / 2, past_only=True, capacity=self.config.memory)
        if self.config.sampling == "uniform":
            mix = Mix(memory=1, capacity=self.config.memory)
        if not self.config.dietcl_flops or not len(step.unlabeled):
            return [Phase(name="replay", mix=mix)]
        # DietCL reconstructs in all of the first time step with labels, and until its threshold in later ones.
        updates, share = joint_limits(self.config.threshold)
        joint = 1.0 if step.is_first else min(share, updates / remaining if remaining else 1.0)
        return [Phase(name="replay", mix=mix, share=1 - joint * self._saved_share)]


class ERACE(PlannedMethod):
    """Replay with asymmetric cross-entropy: new labels compete only with each other (Caccia et al., ICLR 2022)."""

    Config = ERACEOptions
    config: ERACEOptions

    @property
    def cosine_scale(self) -> float | None:
        return COSINE_SCALE if self.config.cosine else None

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        # The memory holds this time step's labels too: under the mask, only there do new classes compete with old ones.
        return [Phase(name="replay", mix=Mix(labeled=1 / 2, memory=1 / 2, past_only=step.is_first))]

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        parts, losses = batch.supervised, []
        for part, logits in zip(parts, net.logits(*parts), strict=True):
            # Without a past there is nothing to protect.
            is_masked = part.pool == "labeled" and batch.memory is not None
            losses.append(part.cross_entropy(logits, part.present() if is_masked else None))
        yield Term("replay", batch.mean(losses))


class GDumb(PlannedMethod):
    """Greedy memory and dumb learner: retrains from the initial weights (Prabhu et al., ECCV 2020)."""

    Config = GDumbOptions
    config: GDumbOptions
    term = "memory"

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        return [Phase(name="retrain", mix=Mix(memory=1, by_class=True, capacity=self.config.memory), fresh=True)]


class Naive(PlannedMethod):
    """Fine-tuning on the labels of this time step and nothing else."""

    Config = NaiveOptions

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        return [Phase(name="fine-tune", mix=Mix(labeled=1))] if len(step.labeled) else []
