"""Curves within a time step: every seen time step measured whenever another share of the budget is spent."""

from dietcl.engine.evaluator import Counts
from dietcl.engine.learner import Learner
from dietcl.engine.resume_position import StepPosition
from dietcl.metrics import known
from dietcl.streams.stream import TimeStep


class Curve:
    """Measures a time step while it is learned, if curves were asked for."""

    def __init__(self, learner: Learner, step: TimeStep, position: StepPosition) -> None:
        self._learner, self._step, self._position = learner, step, position
        self._points = learner.config.evaluation.curves

    def measure_if_due(self) -> None:
        """Measure at the beginning and after each part of the budget."""
        parts = self._learner.ledger.spent_fraction() * self._points + 1e-9  # shares may sum to less than 1
        if self._points and parts >= self._position.curve_due:
            self._position.curve_due = int(parts) + 1
            self._measure()

    def after_last_update(self) -> None:
        """Measure the end of a time step whose budget left a remainder."""
        if self._points and self._position.curve_measured != self._position.updates:
            self._measure()

    def _measure(self) -> None:
        learner, seen = self._learner, self._step.t
        self._position.curve_measured = self._position.updates
        counts = Counts.empty(seen)
        learner.evaluator.measure(learner.method, learner.net, counts, 0, seen)
        number = counts.count[0].clip(min=1)
        losses = [known(value) for value in counts.loss_sum[0] / number]
        accuracy = (counts.correct[0] / number).tolist()
        learner.recorder.event("curve", t=seen, update=self._position.updates, loss=losses, accuracy=accuracy)
