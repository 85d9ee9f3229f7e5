"""Learning to Prompt: a pool of prompts for a frozen encoder (Wang et al., CVPR 2022)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dietcl.errors import UserError
from dietcl.methods.base import Method, Phase, Stretch, Term
from dietcl.streams.options import Mix

if TYPE_CHECKING:
    import torch

    from dietcl.models.net import Net
    from dietcl.streams.batch import Batch
    from dietcl.streams.stream import TimeStep


class L2P(Method):
    """Learns prompts and a head for a frozen encoder, and lets each image choose its prompts from a pool."""

    keeps = "row numbers of all labels; prompts and keys; the first encoder if it is trained"
    cost = "4/3 (query 1/3; more in FLOPs by the prompts' tokens, less by the frozen weights)"

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Options of Learning to Prompt."""

        pool: int = 10
        """Prompts in the pool."""
        length: int = 5
        """Tokens of a prompt."""
        top: int = 5
        """Prompts that an image is seen with."""
        strength: float = 0.1
        """Weight of drawing the chosen keys towards the queries that chose them (0: keys stay as they are)."""
        frozen: bool = True
        """Leave the encoder as it is; otherwise it is trained too, and a copy of the first one makes the queries."""
        replay: bool = True
        """Draw half of a batch from all labels so far; otherwise only this time step's are learned."""

        def __post_init__(self) -> None:
            if self.pool < 1:
                raise UserError(f"--pool {self.pool}: give at least one prompt")
            if self.length < 1:
                raise UserError(f"--length {self.length}: give a prompt at least one token")
            if not 1 <= self.top <= self.pool:
                raise UserError(f"--top {self.top}: give a number from 1 to the {self.pool} prompts of --pool")
            if not 0 <= self.strength < math.inf:
                raise UserError(f"--strength {self.strength}: give a weight from 0")

    def setup(self, net: "Net") -> None:
        from dietcl.methods.pieces.prompts import PromptPool
        from dietcl.methods.pieces.teacher import Teacher

        config = self.config
        self._prompts = net.build(lambda: PromptPool(config.pool, config.length, config.top, net.dim), "prompts")
        self._first = Teacher()
        if not config.frozen:
            self._first.take(net)

    def next_phase(self, step: "TimeStep", done: tuple[Stretch, ...], remaining: float) -> Stretch | None:
        if done:
            return None
        if not self.config.replay:
            return Phase(name="prompt", mix=Mix(labeled=1), price=4 / 3)
        # The memory holds this time step's labels too: under the mask, nothing else sets new classes against old ones.
        return Phase(name="prompt", mix=Mix(labeled=1 / 2, memory=1 / 2, past_only=step.is_first), price=4 / 3)

    def losses(self, net: "Net", phase: Phase, batch: "Batch") -> Iterator[Term]:
        import torch

        parts = batch.supervised
        logits, likeness = self._run(net, torch.cat([part.images for part in parts]))
        values = []
        for part, scores in zip(parts, logits.split([len(part) for part in parts]), strict=True):
            # Earlier classes are hidden from new images, but not from those that show them.
            values.append(part.cross_entropy(scores, batch.classes if part.pool == "labeled" else None))
        yield Term("replay", batch.mean(values))
        if self.config.strength:
            yield Term("keys", -likeness, self.config.strength)

    def predict(self, net: "Net", images: "torch.Tensor") -> "torch.Tensor":
        scores: torch.Tensor = self._run(net, images)[0]
        return scores

    def modules(self) -> "dict[str, torch.nn.Module]":
        return {"prompts": self._prompts}

    def state(self) -> "dict[str, torch.Tensor]":
        return self._first.state()

    def load_state(self, state: "dict[str, torch.Tensor]") -> None:
        self._first.load_state(state)

    def _run(self, net: "Net", images: "torch.Tensor") -> Any:
        """Return logits, and how alike queries and chosen keys are."""
        query = net.query(images, "query", self._first.weights or None)
        prompts, likeness = net.run(self._prompts, query, purpose="pool")
        features = net.prompted(images, prompts, "prompt", self.config.frozen)
        return net.classify(features, "head"), likeness
