"""A pool of prompts: tokens that an image is seen with, chosen by how well their keys match its query."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PromptPool(nn.Module):
    """So many prompts of so many tokens; every image takes the ones whose keys point most nearly its query's way."""

    def __init__(self, pool: int, length: int, top: int, dim: int) -> None:
        super().__init__()
        self.top = top
        # About as large as the tokens that they stand among.
        self.keys = nn.Parameter(torch.rand(pool, dim) * 2 - 1)
        self.prompts = nn.Parameter(torch.rand(pool, length, dim) * 2 - 1)

    def forward(self, query_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the chosen tokens [B, top · length, D], and the sum of their keys' cosines as a mean over images."""
        cosine_BK = F.normalize(query_BD) @ F.normalize(self.keys).T
        chosen_BN, number_BN = cosine_BK.topk(self.top, dim=1)
        # A product chooses, because the gradient of an index is summed in no fixed order on some devices.
        choice_BNK = F.one_hot(number_BN, len(self.keys)).to(self.prompts)
        tokens_BPD = (choice_BNK @ self.prompts.flatten(1)).view(len(query_BD), -1, query_BD.shape[1])
        return tokens_BPD, chosen_BN.sum(1).mean()
