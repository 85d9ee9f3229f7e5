"""Learning to Prompt: a pool of prompts for a frozen encoder (Wang et al., CVPR 2022)."""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dietcl.methods.base import Batch, Mix, Net, Phase, Segment, Term, TimeStep
from dietcl.methods.pieces.store import TaughtMethod
from dietcl.methods.supervised_options import L2POptions


class PromptPool(nn.Module):
    """`pool` prompts of `length` tokens; an image gets the `top` ones whose keys are most similar to its query."""

    def __init__(self, pool: int, length: int, top: int, dim: int) -> None:
        super().__init__()
        self.top = top
        # About as large as the tokens of patches.
        self.keys = nn.Parameter(torch.rand(pool, dim) * 2 - 1)
        self.prompts = nn.Parameter(torch.rand(pool, length, dim) * 2 - 1)

    def forward(self, query_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the selected tokens [B, top · length, D], and the sum of their keys' cosines as a mean over images."""
        cosine_BK = F.normalize(query_BD) @ F.normalize(self.keys).T
        selected_BN, number_BN = cosine_BK.topk(self.top, dim=1)
        # A product selects, because the gradient of an index is summed in no fixed order on some devices.
        choice_BNK = F.one_hot(number_BN, len(self.keys)).to(self.prompts)
        tokens_BPD = (choice_BNK @ self.prompts.flatten(1)).view(len(query_BD), -1, query_BD.shape[1])
        return tokens_BPD, selected_BN.sum(1).mean()


class L2P(TaughtMethod):
    """Learning to Prompt."""

    Config = L2POptions
    config: L2POptions
    view = "query"

    def setup(self, net: Net) -> None:
        config = self.config
        self._prompts = net.build(lambda: PromptPool(config.prompts, config.length, config.top, net.dim), "prompts")
        if not config.frozen:
            self.teacher = net.copy()  # it computes the queries

    def plan(self, step: TimeStep, remaining: float) -> Sequence[Segment]:
        # The memory holds this time step's labels too: under the mask, only there do new classes compete with old ones.
        replay = Mix(labeled=1 / 2, memory=1 / 2, past_only=step.is_first)
        return [Phase(name="prompt", mix=replay if self.config.replay else Mix(labeled=1), price=4 / 3)]

    def losses(self, net: Net, phase: Phase, batch: Batch) -> Iterator[Term]:
        parts = batch.supervised
        logits, similarity = self._run(net, torch.cat([part.images for part in parts]))
        values = []
        for part, scores in zip(parts, logits.split([len(part) for part in parts]), strict=True):
            # Earlier classes are masked for new images, but not for replayed ones.
            values.append(part.cross_entropy(scores, batch.classes if part.pool == "labeled" else None))
        yield Term("replay", batch.mean(values))
        if self.config.strength:
            yield Term("keys", -similarity, self.config.strength)

    def predict(self, net: Net, images: Tensor) -> Tensor:
        return self._run(net, images)[0]

    def modules(self) -> dict[str, nn.Module]:
        return {"prompts": self._prompts}

    def _run(self, net: Net, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits, and the similarity of queries and selected keys."""
        query = net.query(images, "query", self.teacher or None)
        prompts, similarity = net.run(self._prompts, query, purpose="pool")
        features = net.prompted(images, prompts, "prompt", self.config.frozen)
        return net.classify(features, "head"), similarity
