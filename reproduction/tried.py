"""Ideas that were tried on Larder and decided against, each as one change to it: methods of the reproduction alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dietcl import PRESETS, Method, Phase, Sweep, Term
from dietcl.methods.base import Batch, Net, Part, Reserve, Segment, TimeStep
from dietcl.methods.larder import LarderMethod
from dietcl.methods.pieces.larder import Larder
from dietcl.methods.pieces.ridge import score_shares, solve_flops
from dietcl.methods.pieces.solved_head import SolvedHead
from dietcl.methods.pieces.store import Store
from dietcl.methods.pieces.trust import Evidence
from dietcl.methods.semi_supervised_options import LarderOptions
from dietcl.models.presets import Ability
from reproduction.tried_losses import LarderMasked, LarderMixed, LarderStrong

AGAIN = " again"  # after the name of a sweep
OLD_SHARE = 0.05  # of the budget, at most, to look at old guesses
MOST_OLD = 1_000  # of them in a time step
RECONSTRUCTED = 0.25  # of a batch

# Which guesses are drawn.


class BalancedGuesses(Larder):
    """A larder of which every guessed class is drawn equally often."""

    @property
    def weights(self) -> Tensor:
        each = super().weights
        of_class = torch.bincount(self.labels, weights=each)
        # Their sum, by which guesses get their share of a batch, stays what it is.
        return each / of_class[self.labels] * each.sum() / of_class.count_nonzero()


class LarderBalanced(LarderMethod):
    """Larder that draws every guessed class equally often."""

    def setup(self, net: Net) -> None:
        super().setup(net)
        self.larder = BalancedGuesses()


# When images are looked at.


class ReplacedGuesses(Larder):
    """A larder in which guesses take the place of earlier ones of the images that were looked at."""

    looked_at = torch.zeros(0, dtype=torch.int64)

    def add(self, rows: Tensor, labels: Tensor, trust: Tensor, possible: Tensor) -> None:
        left = ~torch.isin(self.rows, self.looked_at)
        for name in ("rows", "labels", "trust", "choice"):
            setattr(self, name, getattr(self, name)[left])
        super().add(rows, labels, trust, possible)


class FirstLook(Evidence):
    """Evidence that takes in nothing while it is closed."""

    is_closed = False

    def add(self, confidence: Tensor, right: Tensor) -> None:
        if not self.is_closed:
            super().add(confidence, right)


class LarderTwice(LarderMethod):
    """Larder that guesses again amid a time step, of which the two halves have one cosine."""

    larder: ReplacedGuesses
    evidence: FirstLook

    def setup(self, net: Net) -> None:
        super().setup(net)
        self.larder, self.evidence = ReplacedGuesses(), FirstLook()

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        *looks, learn = super().plan(step, remaining)
        assert isinstance(learn, Phase)
        if not looks:
            return [learn]
        # Where looking takes all it may, both halves get as much; half of the budget remains after the first one.
        share = looks[-1].share
        first = replace(learn, share=(0.5 - share) / (1 - share), schedule=(0.0, 0.5))
        again = [replace(look, name=f"{look.name}{AGAIN}", share=2 * look.share) for look in looks]
        return [*looks, first, *again, replace(learn, name="go on", schedule=(0.5, 1.0))]

    def end_sweep(self, net: Net, step: TimeStep, sweep: Sweep) -> None:
        # The labels have been learned by now, so that guessing them tells nothing of how often guesses are right.
        self.evidence.is_closed = sweep.name.endswith(AGAIN)
        super().end_sweep(net, step, replace(sweep, name=sweep.name.removesuffix(AGAIN)))

    def _guess_labels(self, net: Net, step: TimeStep) -> None:
        self.larder.looked_at = self._arrived()["rows"]
        super()._guess_labels(net, step)


class RevisedGuesses(Larder):
    """A larder whose guesses change when the network is asked again."""

    def judge(self, rows: Tensor, log_p: Tensor) -> dict[str, Tensor]:
        """Return the guesses that follow from beliefs and answers, and how far each is trusted."""
        belief = (self.beliefs(rows, log_p.shape[1]).double().log() + log_p.double()).softmax(1)
        chance, labels = belief.max(1)
        guess = self._places(rows)
        number = (self.choices[self.choice[guess]] >= 0).sum(1)
        # The trust under which a larder believes this; where there is no choice, no answer tells anything.
        trust = (chance * number - 1).clamp(min=0) / (number - 1).clamp(min=1)
        return {"rows": rows, "labels": labels, "trust": torch.where(number > 1, trust, self.trust[guess])}

    def revise(self, rows: Tensor, labels: Tensor, trust: Tensor) -> None:
        """Put guesses in the place of earlier ones."""
        guess = self._places(rows)
        self.labels, self.trust = self.labels.clone(), self.trust.clone()  # pools show what was
        self.labels[guess], self.trust[guess] = labels, trust

    def _places(self, rows: Tensor) -> Tensor:
        return self._order[torch.searchsorted(self._sorted, rows)]


class LarderRevised(LarderMethod):
    """Larder that looks at some old guesses again when a time step begins, and believes what follows."""

    larder: RevisedGuesses

    def setup(self, net: Net) -> None:
        super().setup(net)
        self.larder, self.judged = RevisedGuesses(), list[dict[str, Tensor]]()

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        plan = super().plan(step, remaining)
        return plan if step.is_first else [Sweep(name="old", pool="larder", most=MOST_OLD, share=OLD_SHARE), *plan]

    def gather(self, net: Net, sweep: Sweep, part: Part) -> dict[str, Tensor]:
        if sweep.name != "old":
            return super().gather(net, sweep, part)
        assert part.rows is not None
        return self.larder.judge(
            part.rows, net.scores(part.images, sweep.name, self.averaged.values).log_softmax(1).cpu()
        )

    def absorb(self, net: Net, sweep: Sweep, gathered: dict[str, Tensor]) -> None:
        if sweep.name == "old":
            self.judged.append(gathered)  # a sweep's own pool stays as it is until its end
        else:
            super().absorb(net, sweep, gathered)

    def end_sweep(self, net: Net, step: TimeStep, sweep: Sweep) -> None:
        if sweep.name == "old":
            self.larder.revise(**self._revisions())
            self.judged = []
        super().end_sweep(net, step, sweep)

    def state(self) -> dict[str, Tensor]:
        return super().state() | {f"revised_{name}": value for name, value in self._revisions().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        self.judged = [{name: state[f"revised_{name}"].cpu() for name in self._revisions()}]

    def _revisions(self) -> dict[str, Tensor]:
        none = torch.zeros(0, dtype=torch.int64)
        parts = [{"rows": none, "labels": none, "trust": none.double()}, *self.judged]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


# What is learned on top.


@dataclass(frozen=True, kw_only=True)
class ReconstructOptions(LarderOptions):
    """Larder that also reconstructs arriving images."""

    alpha: float = PRESETS["nano"].methods["dietcl"]["alpha"]
    """Weight of the reconstruction, by default DietCL's at sizes for small images."""

    @property
    def needs(self) -> frozenset[Ability]:
        return frozenset({"patches"})


class LarderReconstruct(LarderMethod):
    """Larder that also reconstructs arriving images, a quarter of every batch."""

    Config = ReconstructOptions
    config: ReconstructOptions

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        *looks, learn = super().plan(step, remaining)
        assert isinstance(learn, Phase)
        left = 1 - RECONSTRUCTED
        mix = replace(
            learn.mix, unlabeled=RECONSTRUCTED, memory=left * learn.mix.memory, larder=left * learn.mix.larder
        )
        return [*looks, replace(learn, mix=mix)]

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        if batch.supervised:
            yield from super().losses(net, phase, batch)
        if batch.unlabeled is not None:
            yield Term("reconstruct", net.reconstruct(batch.unlabeled, batch.key), self.config.alpha)


# How it answers.


class LarderBlended(LarderMethod):
    """Larder that answers with the mean of its head and of one that is solved from all labels, looked at in the end."""

    def setup(self, net: Net) -> None:
        super().setup(net)
        self.head = SolvedHead(net.dim)

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        *looks, learn = super().plan(step, remaining)
        assert isinstance(learn, Phase)
        kept = Reserve(forward=self.num_labels, flops=solve_flops(self.num_labels, self.dim, step.seen_classes))
        return [
            *looks,
            replace(learn, reserve=kept),
            Sweep(name="head", pool="memory", reserve=replace(kept, forward=0)),
        ]

    def end_sweep(self, net: Net, step: TimeStep, sweep: Sweep) -> None:
        if sweep.name != "head":
            super().end_sweep(net, step, sweep)
            return
        self.head.labeled = Store()
        self.head.labeled.add(*self._take_arrivals().values())
        if net.pay("solve", solve_flops(len(self.head.labeled), self.dim, net.classes)):
            self.head.solve_labels(net.classes)

    def predict(self, net: Net, images: Tensor) -> Tensor:
        values = self.averaged.values or None
        learned = net.scores(images, "predict", values).softmax(1)
        solved = self.head.scores(net.features(images, "predict", values), learned.shape[1])
        return ((learned + score_shares(solved)) / 2).log()

    def predict_state(self) -> dict[str, Tensor]:
        return self.head.solution()

    def load_predict_state(self, state: dict[str, Tensor]) -> None:
        self.head.load_solution(state)

    def state(self) -> dict[str, Tensor]:
        return super().state() | {f"blended_{name}": value for name, value in self.head.solution().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        self.head.load_solution({name: state[f"blended_{name}"] for name in self.head.solution()})


TRIED: dict[str, type[Method]] = {
    "larder_balanced": LarderBalanced,
    "larder_mixed": LarderMixed,
    "larder_strong": LarderStrong,
    "larder_twice": LarderTwice,
    "larder_revised": LarderRevised,
    "larder_reconstruct": LarderReconstruct,
    "larder_masked": LarderMasked,
    "larder_blended": LarderBlended,
}
