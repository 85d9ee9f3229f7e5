"""The loop: every time step its phases, every phase its updates, every update its micro-batches."""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch

from dietcl import keys
from dietcl.budget.ledger import Overdraft
from dietcl.engine.evaluate import Counts
from dietcl.engine.learner import Learner
from dietcl.engine.optimizer import build_optimizer, set_learning_rate
from dietcl.methods.base import Phase, Stretch, Sweep
from dietcl.metrics import summarize
from dietcl.streams.augment import make_batch, plain_part
from dietcl.streams.batch import Batch
from dietcl.streams.mix import Mix
from dietcl.streams.sampler import pools_of, sample, walk
from dietcl.streams.stream import TimeStep

LOG_EVERY = 10
MOST_STRETCHES = 1000  # in a time step; more of them mean that a method never says None
_ADVICE = "lower --lr or --head-lr; the last finished time step is kept"


class NotFinite(Exception):
    """A loss became infinite or not a number; the sentence says where."""


def learn(learner: Learner, finished: int = 0) -> Iterator[int]:
    """Learn the stream after the finished time steps; yields every time step once it is learned and measured."""
    for step in [step for step in learner.stream.steps if step.t > finished]:
        started, waited, substituted = time.perf_counter(), learner.loader.waited, learner.loader.substituted
        learner.network.head.grow(step.seen_classes, keys.torch_generator("cpu", learner.config.seed, step.t, "head"))
        learner.ledger.open(step.t, step.seen_classes, step.spans)
        _announce(learner, step)
        with _within_budget(learner, "begin_step"):
            learner.method.begin_step(learner.net, step)
        curve = _Curve(learner, step)
        done: tuple[Stretch, ...] = ()
        updates = 0
        while stretch := learner.method.next_phase(step, done, learner.ledger.remaining_updates()):
            if len(done) > MOST_STRETCHES:
                raise RuntimeError(
                    f"{type(learner.method).__name__}.next_phase asks for ever more phases; "
                    "return None when the time step is over, which `done` tells"
                )
            with hold(learner, stretch):
                if isinstance(stretch, Sweep):
                    run_sweep(learner, step, stretch, len(done))
                else:
                    updates += run_phase(learner, step, stretch, len(done), curve)
            done += (stretch,)
        with _within_budget(learner, "end_step"):
            learner.method.end_step(learner.net, step)
        curve.after_last_update()
        learning_seconds, data_wait = time.perf_counter() - started, learner.loader.waited - waited
        until = min(step.t + 1, len(learner.stream.tests))
        learner.evaluator.measure(learner.method, learner.net, learner.counts, step.t - 1, until)
        receipt = learner.ledger.close()
        summary = summarize(learner.counts.correct, learner.counts.count, learner.counts.loss_sum)
        learner.witness.event(
            "step_end",
            t=step.t,
            accuracy_mean=_known(summary.accuracy_mean[step.t - 1]),
            accuracy_pooled=_known(summary.accuracy_pooled[step.t - 1]),
            updates=updates,
            spent=receipt.spent,
            unused=receipt.unused,
            state_bytes=state_bytes(learner, step, done),
            seconds=learning_seconds,
            data_wait=data_wait,
            substituted=learner.loader.substituted - substituted,
        )
        yield step.t


def run_phase(learner: Learner, step: TimeStep, phase: Phase, number: int, curve: "_Curve") -> int:
    """Spend a phase's budget on updates; returns how many were made."""
    config, ledger = learner.config.training, learner.ledger
    pools = pools_of(learner.stream, step.t, phase.mix)
    counts = phase.mix.counts(config.micro_batch, pools)
    if not counts:
        return 0
    account = ledger.allot(phase.share, phase.updates)
    cost = phase.price * config.batch
    if phase.fresh and account.affords(cost, learner.pace):
        learner.net.reset(step)
    optimizers: dict[str, torch.optim.Optimizer] = {}
    micro_batches = config.batch // config.micro_batch
    key = (learner.config.seed, step.t, number)
    draws = (
        sample(pools, counts, (*key, update, micro)) for update in itertools.count() for micro in range(micro_batches)
    )
    ready = learner.loader.iterate(draws, ahead=learner.config.augmentation)
    classes = torch.from_numpy(step.classes).to(learner.device)
    update = 0
    while account.affords(cost, learner.pace):
        started, spent = time.perf_counter(), ledger.spent
        turn = learner.method.turn((*key, update, 0), counts)
        if turn not in optimizers:
            optimizers[turn] = build_optimizer(learner.network, learner.method.modules(), config)
        optimizer = optimizers[turn]
        lr = set_learning_rate(optimizer, config, phase.lr_scale, account.fraction)
        optimizer.zero_grad(set_to_none=True)
        losses: dict[str, torch.Tensor] = {}
        try:
            with ledger.update():
                for micro in range(micro_batches):
                    drawn, images = next(ready)
                    batch = make_batch(drawn, images, classes, learner.config.augmentation, (*key, update, micro))
                    for name, value in backward(learner, phase, batch, micro_batches).items():
                        losses[name] = losses[name] + value if name in losses else value
        except Overdraft:
            break  # what is paid is spent, but half an update is not applied
        if ledger.spent == spent:
            raise RuntimeError(f"phase {phase.name}: an update that runs nothing is free and would never end")
        values = {name: float(value) for name, value in losses.items()}
        if not all(math.isfinite(value) for value in values.values()):
            raise NotFinite(
                f"the loss is {values} at time step {step.t}, phase {phase.name}, update {update}; {_ADVICE}"
            )
        optimizer.step()
        with _within_budget(learner, "after_update"):
            learner.method.after_update(learner.net, phase)
        cost, learner.pace = ledger.spent - spent, time.perf_counter() - started
        ledger.pass_seconds = learner.pace / cost
        if update % LOG_EVERY == 0:
            learner.witness.event(
                "update", t=step.t, phase=phase.name, update=update, loss=values, lr=lr, spent=ledger.spent
            )
        learner.witness.progress(step.t, ledger.spent_fraction())
        curve.after_update()
        update += 1
    ready.close()
    if update and not all(bool(p.isfinite().all()) for p in learner.network.parameters()):
        # A finite loss can still have a gradient that is not; such weights must not become a checkpoint.
        raise NotFinite(
            f"a weight is not finite at time step {step.t}, phase {phase.name}, after update {update - 1}; {_ADVICE}"
        )
    return update


def run_sweep(learner: Learner, step: TimeStep, sweep: Sweep, number: int) -> None:
    """Show the method a pool once, as far as the budget goes."""
    pool = pools_of(learner.stream, step.t, Mix())[sweep.pool]
    key = (learner.config.seed, step.t, number)
    ready = learner.loader.iterate(walk(sweep.pool, pool, learner.config.training.micro_batch, key))
    gathered = 0
    for (drawn,), (images,) in ready:
        part = plain_part(drawn, images)
        start, size = 0, len(part)
        while start < len(part) and size:
            try:
                learner.method.gather(learner.net, sweep, part.take(slice(start, start + size)))
            except Overdraft:
                size //= 2
            else:
                start += size
        gathered += min(start, len(part))
        learner.witness.progress(step.t, learner.ledger.spent_fraction())
        if start < len(part):
            break
    ready.close()
    learner.witness.event("sweep", t=step.t, name=sweep.name, images=gathered, of=len(pool.rows))


def hold(learner: Learner, stretch: Stretch) -> AbstractContextManager[None]:
    """Keep back what the rest of the time step will need, but leave a phase its first update."""
    ledger, reserve = learner.ledger, stretch.reserve
    passes = ledger.price("importance") * reserve.importance + ledger.price("forward") * reserve.forward
    passes += reserve.flops / ledger.pass_flops
    leave = 0.0
    if isinstance(stretch, Phase) and stretch.share:
        leave = learner.config.training.batch * stretch.price / stretch.share
    return ledger.hold(passes, leave)


def state_bytes(learner: Learner, step: TimeStep, done: Sequence[Stretch]) -> int:
    """Return the size of what the method keeps: its tensors and modules, and the labels it remembers."""
    method = learner.method
    tensors = [*method.state().values(), *(p for m in method.modules().values() for p in m.state_dict().values())]
    memories = [
        pools_of(learner.stream, step.t, stretch.mix)["memory"]
        for stretch in done
        if isinstance(stretch, Phase) and stretch.mix.memory
    ]
    # A row number and a label for each remembered image.
    size: int = max((2 * pool.rows.nbytes for pool in memories), default=0)
    return size + sum(int(value.nbytes) for value in tensors)


def backward(learner: Learner, phase: Phase, batch: Batch, micro_batches: int) -> dict[str, torch.Tensor]:
    """Add one micro-batch's gradients; returns its share of each term's value."""
    terms = list(learner.method.losses(learner.net, phase, batch))
    if terms:
        # The update's loss is the mean over micro-batches of the sum of the terms.
        torch.stack([term.weight * term.value for term in terms]).sum().div(micro_batches).backward()
    return {term.name: term.value.detach() / micro_batches for term in terms}


@contextmanager
def _within_budget(learner: Learner, hook: str) -> Iterator[None]:
    """Let a hook spend what is there; only losses and gather may be refused in the midst."""
    try:
        yield
    except Overdraft as refused:
        name = type(learner.method).__name__
        raise RuntimeError(f"{name}.{hook} must be paid from what its phases leave over: {refused}") from refused


def _known(value: float) -> float | None:
    """Return None for what could not be measured: JSON has no word for nan."""
    return None if math.isnan(value) else float(value)


def _announce(learner: Learner, step: TimeStep) -> None:
    learner.witness.event(
        "step_begin",
        t=step.t,
        labeled=len(step.labeled),
        unlabeled=len(step.unlabeled),
        new_classes=step.new_classes,
        classes=step.seen_classes,
        realized_rate=step.realized_rate,
    )


class _Curve:
    """Measures every seen time step whenever another share of the budget is spent, if curves were asked for."""

    def __init__(self, learner: Learner, step: TimeStep) -> None:
        self._learner, self._step = learner, step
        self._points = learner.config.evaluation.curves
        self._updates = self._due = 0
        self._measured: int | None = None
        self._measure_if_due()

    def after_update(self) -> None:
        self._updates += 1
        self._measure_if_due()

    def after_last_update(self) -> None:
        """Measure the end of a time step whose budget left a remainder."""
        if self._points and self._measured != self._updates:
            self._measure()

    def _measure_if_due(self) -> None:
        parts = self._learner.ledger.spent_fraction() * self._points + 1e-9  # a sum of shares falls short of the whole
        if self._points and parts >= self._due:
            self._due = int(parts) + 1
            self._measure()

    def _measure(self) -> None:
        learner, seen = self._learner, self._step.t
        self._measured = self._updates
        counts = Counts.empty(seen)
        learner.evaluator.measure(learner.method, learner.net, counts, 0, seen)
        number = counts.count[0].clip(min=1)
        learner.witness.event(
            "curve",
            t=seen,
            update=self._updates,
            loss=(counts.loss_sum[0] / number).tolist(),
            accuracy=(counts.correct[0] / number).tolist(),
        )
