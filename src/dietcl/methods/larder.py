"""Larder: guesses labels as images arrive, while their classes are few, and replays what it can trust for good."""

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dietcl.methods.base import (
    Batch,
    Mix,
    Net,
    Part,
    Phase,
    PlannedMethod,
    Pool,
    Reserve,
    Segment,
    Sweep,
    Term,
    TimeStep,
)
from dietcl.methods.pieces.averaged import AveragedWeights
from dietcl.methods.pieces.guessing import Guesser, cross_fit, guess_flops, rank_in_class
from dietcl.methods.pieces.larder import Larder
from dietcl.methods.pieces.ridge import score_shares, solve_flops
from dietcl.methods.pieces.solved_head import SolvedHead
from dietcl.methods.pieces.trust import Evidence, trust
from dietcl.methods.semi_supervised_options import LarderOptions
from dietcl.models.network import Weights

LEAST_TRUST = 0.25  # of a guess that is remembered
LEAST_MEAN_TRUST = 0.2  # of all guesses of a time step: below, even the most confident ones are luck
LABELS_SHARE = 0.1  # of the budget, at most, to look at new labels
PAST_SHARE = 0.05  # the same, at earlier labels of classes that come again
GUESSING_SHARE = 0.15  # the same, at arriving images
TRYING = 0.13  # of these two shares, if guesses of the time step before could not be trusted
FROZEN_SHARE = 0.75  # of the budget, at most, to guess on a frozen encoder; the rest is for solving the head
LEAST_MISSED = 0.2  # probability that an image is of an old class without a label, from which on these are guessed too
MOST_COMPARED = 10_000  # arriving images, and as many new labels, as all are compared with each other
FEW_LABELS = 20  # so far, at which guesses get half of their share: by so few, wrong ones may seem right
MOST_PAST = 1_000  # labels of earlier time steps that help to guess


class LarderMethod(PlannedMethod):
    """Replay of all labels and of trusted guesses; averaged weights guess and answer."""

    Config = LarderOptions
    config: LarderOptions
    term = "replay"
    guesser: ClassVar[type[Guesser]] = Guesser

    def setup(self, net: Net) -> None:
        self.dim = net.dim
        self.averaged, self.larder, self.evidence = AveragedWeights(), Larder(), Evidence()
        self.num_labels, self.is_trusted = 0, True
        self.arrivals: list[dict[str, Tensor]] = []
        self.solved = SolvedHead(net.dim) if net.is_frozen else None

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        can_guess = self.config.guessed > 0 and len(step.unlabeled) > len(step.unplaced) and has_choice(step)
        if self.solved is not None:
            if not len(step.labeled):
                return []
            alone = Reserve(flops=solve_flops(self.num_labels, self.dim, step.seen_classes))
            found = [Sweep(name="labels", pool="labeled", reserve=alone)]
            final = Reserve(flops=self.solved.flops(self.num_labels, step.seen_classes))
            return [*found, self._guess(step, FROZEN_SHARE, final)] if can_guess else found
        guessed = self._guessed_share()
        learn = Phase(name="learn", mix=Mix(memory=1 - guessed, larder=guessed))
        if not can_guess:
            return [learn]
        scale = 1.0 if self.is_trusted else TRYING
        found = [Sweep(name="labels", pool="labeled", most=MOST_COMPARED, share=LABELS_SHARE)]
        if is_recurring(step):
            found.append(Sweep(name="past", pool="memory", most=MOST_PAST, share=scale * PAST_SHARE, past_only=True))
        return [*found, self._guess(step, scale * GUESSING_SHARE, Reserve()), learn]

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        pairs = zip(batch.supervised, net.logits(*batch.supervised), strict=True)
        losses = [
            self.larder.cross_entropy(part, logits) if part.pool == "larder" else part.cross_entropy(logits)
            for part, logits in pairs
        ]
        yield Term(self.term, batch.mean(losses))

    def begin_step(self, net: Net, step: TimeStep) -> None:
        self.num_labels += len(step.labeled)
        self.averaged.begin_step(net)

    def after_update(self, net: Net, phase: Phase) -> None:
        self.averaged.update(net)

    def gather(self, net: Net, sweep: Sweep, part: Part) -> dict[str, Tensor]:
        assert part.rows is not None
        features = net.features(part.images, sweep.name, None if self.solved else self.averaged.values)
        labels = torch.full_like(part.rows, -1) if part.labels is None else part.labels.cpu()
        return {"rows": part.rows, "labels": labels, "features": features.cpu()}

    def absorb(self, net: Net, sweep: Sweep, gathered: dict[str, Tensor]) -> None:
        self.arrivals.append(gathered)

    def end_sweep(self, net: Net, step: TimeStep, sweep: Sweep) -> None:
        if self.solved is not None and sweep.name == "labels":
            self.solved.labeled.add(*self._take_arrivals().values())
            # Whatever guesses cost, there is a head; with earlier guesses it is solved once, at the end.
            if not self.solved.has_guesses:
                self._solve_labels(net)
        if sweep.name == "guess":
            self._guess_labels(net, step)

    def _guess_labels(self, net: Net, step: TimeStep) -> None:
        """Guess the labels of arriving images, and remember those that can be trusted."""
        rows, labels, features = self._take_arrivals().values()
        if self.solved is not None:
            known = self.solved.labeled
            latest = slice(-min(len(known), MOST_PAST + min(MOST_COMPARED, len(step.labeled))), None)
            rows, labels = torch.cat([known.rows[latest], rows]), torch.cat([known.labels[latest], labels])
            features = torch.cat([known.values[latest], features])
        prior = class_prior(step)
        possible = prior.nonzero()[:, 0]
        used = torch.isin(labels, possible) | (labels < 0)
        place = torch.full((step.seen_classes + 1,), -1)  # its last entry stays: of a label that is unknown
        place[possible] = torch.arange(len(possible))
        rows, labels, features, prior = rows[used], place[labels[used]], features[used], prior[possible]
        arrived, is_new = labels < 0, torch.isin(rows, torch.from_numpy(step.labeled))
        flops = guess_flops(len(rows), self.dim, len(possible))
        if self.solved is not None:
            flops += self.solved.add_flops(int(arrived.sum()), step.seen_classes)
        if arrived.all() or not arrived.any() or not net.pay("guess", flops):
            return
        guesser = self.guesser(features)
        shares, tested = cross_fit(guesser, labels, is_new, len(possible))
        confidence, best = _most_confident(shares, prior)
        self.evidence.add(confidence, best == labels[tested])
        spread, fitted = (part[arrived] for part in guesser.shares(labels, len(possible)))
        agreement = (int((spread.argmax(1) == fitted.argmax(1)).sum()) + 1) / (len(spread) + 2)
        confidence, best = _most_confident((spread + fitted) / 2, prior)
        # Guessers of the same features also agree on what is wrong: where labels cannot tell, less is expected.
        trusted = trust(self.evidence.chance_of_right(confidence, agreement**2), len(step.classes))
        # None can be right of a class whose labels were not looked at, or that has none.
        trusted *= known_share(step, possible[labels[is_new]]) * (1 - unseen_share(step))
        self.is_trusted = bool(trusted.mean() >= LEAST_MEAN_TRUST)
        kept = (trusted >= LEAST_TRUST) & self.is_trusted
        if self.config.per_label is not None:
            limit = self.config.per_label * torch.bincount(labels[is_new], minlength=len(possible))
            kept &= rank_in_class(best, trusted) < limit[best]
        guessed = possible[best[kept]]
        if self.solved is not None:
            self.solved.add_guesses(features[arrived][kept], guessed, trusted[kept], step.seen_classes)
        self.larder.add(rows[arrived][kept], guessed, trusted[kept], possible)

    def end_step(self, net: Net, step: TimeStep) -> None:
        solved = self.solved
        if solved is None or not solved.has_guesses or not len(step.labeled):
            return
        if net.pay("solve", solved.flops(len(solved.labeled), net.classes)):
            solved.solve(net.classes)
        elif solved.solved_labels < len(solved.labeled):
            self._solve_labels(net)  # rather than a head that knows nothing of this time step

    def remembered(self) -> Pool:
        return self.larder.pool()

    def predict(self, net: Net, images: Tensor) -> Tensor:
        if self.solved is not None:
            return self.solved.scores(net.features(images, "predict"), net.classes)
        return net.scores(images, "predict", self.averaged.values or None)  # a loaded model has them for its own

    def probabilities(self, scores: Tensor) -> Tensor:
        return super().probabilities(scores) if self.solved is None else score_shares(scores)

    def state(self) -> dict[str, Tensor]:
        pieces = (self.larder, self.evidence, self.averaged if self.solved is None else self.solved)
        numbers = {"num_labels": torch.tensor(self.num_labels), "is_trusted": torch.tensor(self.is_trusted)}
        return {name: value for piece in pieces for name, value in piece.state().items()} | numbers | self._arrived()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.larder.load_state(state)
        self.evidence.load_state(state)
        (self.averaged if self.solved is None else self.solved).load_state(state)
        self.num_labels, self.is_trusted = int(state["num_labels"]), bool(state["is_trusted"])
        self.arrivals = [{name: state[name].cpu() for name in self._arrived()}]

    def predict_weights(self) -> Weights | None:
        return self.averaged.values if self.solved is None else None

    def predict_state(self) -> dict[str, Tensor]:
        return {} if self.solved is None else self.solved.solution()

    def load_predict_state(self, state: dict[str, Tensor]) -> None:
        if state:
            self.solved = SolvedHead(self.dim)
            self.solved.load_solution(state)

    def _solve_labels(self, net: Net) -> None:
        assert self.solved is not None
        if net.pay("solve", solve_flops(len(self.solved.labeled), self.dim, net.classes)):
            self.solved.solve_labels(net.classes)

    def _guessed_share(self) -> float:
        """Return the share of guesses in a batch: more by trust and by labels so far; no guess outweighs a label."""
        if not len(self.larder):
            return 0.0
        by_labels = self.num_labels / (self.num_labels + FEW_LABELS)
        by_trust = by_labels * self.config.guessed * math.sqrt(float(self.larder.trust.mean()))
        weight = float(self.larder.weights.sum())
        return min(by_trust, weight / (weight + self.num_labels))

    def _guess(self, step: TimeStep, share: float, reserve: Reserve) -> Sweep:
        """Return the sweep over arriving images, whose share covers the guesses that follow."""
        arriving = min(MOST_COMPARED, len(step.unlabeled) - len(step.unplaced))
        known = min(MOST_COMPARED, len(step.labeled))
        if self.solved is not None or is_recurring(step):
            known += min(MOST_PAST, self.num_labels - len(step.labeled))
        flops = guess_flops(arriving + known, self.dim, int(class_prior(step).count_nonzero()))
        if self.solved is not None:
            flops += self.solved.add_flops(arriving, step.seen_classes)
        return Sweep(
            name="guess",
            pool="unlabeled",
            most=MOST_COMPARED,
            share=share,
            later=flops / arriving,
            placed_only=True,
            reserve=reserve,
        )

    def _take_arrivals(self) -> dict[str, Tensor]:
        """Return what was gathered since the last call: rows, labels (-1: none) and features."""
        arrived, self.arrivals = self._arrived(), []
        return arrived

    def _arrived(self) -> dict[str, Tensor]:
        empty = torch.zeros(0, dtype=torch.int64)
        parts = [{"rows": empty, "labels": empty, "features": torch.zeros(0, self.dim)}, *self.arrivals]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def class_prior(step: TimeStep) -> Tensor:
    """Return the weight of every class so far for an image that arrives without a label; 0 if it cannot have it.

    Classes with a label in this time step weigh 1. Others may have come, too, if old classes come again at all; how
    likely that is, labels that are the only ones of an old class tell (Good and Turing's estimate of what is missed).
    """
    counts = np.bincount(step.labels, minlength=step.seen_classes)
    prior = np.where(counts > 0, 1.0, 0.0)
    is_old = np.arange(step.seen_classes) < step.seen_classes - len(step.new_classes)
    missing = is_old & (counts == 0)
    missed = ((counts[is_old] == 1).sum() + 1) / (len(step.labels) + 2)
    if is_recurring(step) and missing.any() and missed >= LEAST_MISSED:
        prior[missing] = missed / (1 - missed) * len(step.classes) / missing.sum()
    return torch.from_numpy(prior)


def has_choice(step: TimeStep) -> bool:
    """Return whether labels tell classes apart: nothing tells one alone from classes without a label."""
    return len(step.labeled) > 0 and (step.by_class or int(class_prior(step).count_nonzero()) > 1)


def known_share(step: TimeStep, looked_at: Tensor) -> float:
    """Return the share of a time step's labels of classes that are among the labels that were looked at."""
    return float(np.isin(step.labels, looked_at.numpy()).mean())


def unseen_share(step: TimeStep) -> float:
    """Return the probability that an arriving image is of a class that no label has shown yet.

    Of a stream that is cut by class it is 0. Else new classes with a single label tell (Good and Turing's estimate).
    """
    if step.by_class:
        return 0.0
    is_new = step.labels >= step.seen_classes - len(step.new_classes)
    single = int((np.bincount(step.labels[is_new]) == 1).sum())
    return (single + 1) / (len(step.labels) + 2)


def is_recurring(step: TimeStep) -> bool:
    """Return whether a class of an earlier time step has a label in this one."""
    return bool((step.classes < step.seen_classes - len(step.new_classes)).any())


def _most_confident(shares: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
    """Return the highest share of every image under a prior, and whose it is."""
    shares = shares * prior
    return (shares / shares.sum(1, keepdim=True).clamp(min=1e-12)).max(1)
