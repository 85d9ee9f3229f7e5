"""Fine-tuning with weights held by importance."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from dietcl.methods.base import Method, Phase, Reserve, Stretch, Sweep, Term
from dietcl.streams.options import Mix

if TYPE_CHECKING:
    import torch

    from dietcl.methods.pieces.importance import Pair
    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch
    from dietcl.streams.stream import TimeStep


class Anchored(Method):
    """Fine-tunes under the penalty of all pairs so far, then sweeps the labels for the importance of the next one.

    A method measures in `gather`, and in `end_step` takes the estimate and makes a pair.
    """

    sweep: ClassVar[str]
    """Name of the sweep."""

    def __init__(self, config: Any) -> None:
        from dietcl.methods.pieces.importance import Estimate

        super().__init__(config)
        self._pairs: list[Pair] = []
        self._estimate = Estimate()

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        if not len(step.labeled):
            return None
        if not done:
            reserve = Reserve(importance=len(step.labeled)) if self.config.strength else Reserve()
            return Phase(name="fine-tune", mix=Mix(labeled=1), reserve=reserve)
        return Sweep(name=self.sweep, pool="labeled") if self.config.strength and len(done) == 1 else None

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        import torch

        assert batch.labeled is not None
        (logits,) = net.logits(batch.labeled)
        yield Term("labeled", batch.labeled.cross_entropy(logits))
        if self._pairs:
            weights = net.weights()
            value = torch.stack([pair.penalty(weights) for pair in self._pairs]).sum()
            yield Term("penalty", value, self.config.strength)

    def absorb(self, net: "Net", sweep: Sweep, gathered: "dict[str, torch.Tensor]") -> None:
        self._estimate.add(gathered)

    def state(self) -> "dict[str, torch.Tensor]":
        from dietcl.methods.pieces.importance import pack

        return pack(self._pairs) | {f"estimate {name}": value for name, value in self._estimate.sums.items()}

    def load_state(self, state: "dict[str, torch.Tensor]") -> None:
        from dietcl.methods.pieces.importance import unpack

        begun = {name: value for name, value in state.items() if name.startswith("estimate ")}
        self._estimate.sums = {name.removeprefix("estimate "): value for name, value in begun.items()}
        self._pairs = unpack({name: value for name, value in state.items() if name not in begun})
