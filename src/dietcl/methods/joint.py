"""Joint training on the whole stream, the paper's upper bound (Zhang et al., ICLR 2024)."""

from typing import ClassVar, Literal

from dietcl.methods.two_stage import TwoStage


class Joint(TwoStage):
    """Learns all time steps at once in two stages, under the budgets of all: a reference, not a bound."""

    keeps = "row numbers of all images, all labels; the decoder"
    cost = "1 (less in FLOPs: a reconstruction is cheaper)"
    learns: ClassVar[Literal["stream", "union"]] = "union"
