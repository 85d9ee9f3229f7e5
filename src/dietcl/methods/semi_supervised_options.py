"""Options of DietCL, of its controls and of the other methods that also use unlabeled images; free of torch."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from dietcl.checked_options import Count, Factor, FromZero, Later, Positive, Share, Valid, Weight
from dietcl.errors import UserError
from dietcl.methods.method_options import AUTO, MethodOptions, Search, joint_limits
from dietcl.models.presets import Ability

RECONSTRUCTION_COST = "1 (less in FLOPs: a reconstruction is cheaper)"


@dataclass(frozen=True, kw_only=True)
class DietCLOptions(MethodOptions):
    """Learns jointly from three pools until the threshold, then from the balanced memory alone."""

    keeps = "row numbers of all labels; the decoder"
    cost = RECONSTRUCTION_COST

    # The paper tried 300, 350, 400 and 450 of 500 updates.
    searched: ClassVar[Search] = Search(option="threshold", shares=(0.6, 0.7, 0.8, 0.9))

    threshold: str = "400"
    """Limit of the joint phase (B): 400 (updates' worth of passes), 80% (of the budget) or auto (cross-validated)."""
    alpha: Weight = 50.0
    """Weight of the reconstruction."""
    unlabeled: float = 1 / 3
    """Share of unlabeled images in a joint batch (0: no reconstruction)."""
    labeled: float = 1 / 3
    """Share of this time step's labels (0: no masked loss)."""
    memory: float = 1 / 3
    """Share of the memory (0: no memory at all, so no phase on it either)."""
    mask_classes: bool = True
    """Restrict the loss on this time step's labels to the classes revealed in it."""
    balance_memory: bool = True
    """Draw every time step of the memory equally often (otherwise every label)."""
    balance_lr: Annotated[float, Valid(lambda x: 0 < x <= 1, "give a factor above 0, at most 1")] = 0.1
    """Learning-rate factor of the memory-only phase, if it starts anew."""
    restart: Annotated[bool, Later()] = True
    """Start the memory-only phase anew (otherwise it goes on with the optimizer and the cosine of the joint phase)."""
    reconstruct: Literal["unlabeled", "labeled"] = "unlabeled"
    """What is reconstructed; labeled: as many images, but drawn from those with labels in this time step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold != AUTO:
            joint_limits(self.threshold)
        shares = (self.unlabeled, self.labeled, self.memory)
        if not min(shares) >= 0 or not 0 < sum(shares) < math.inf:
            raise UserError("--unlabeled, --labeled, --memory: give shares from 0, at least one of them above it")

    @property
    def needs(self) -> frozenset[Ability]:
        return frozenset({"patches"} if self.unlabeled else ())


@dataclass(frozen=True, kw_only=True)
class TwoStageOptions(MethodOptions):
    """Reconstructs this time step's unlabeled images, then fine-tunes on uniform draws from all labels."""

    keeps = "row numbers of all labels; the decoder"
    cost = RECONSTRUCTION_COST

    pretrain: Share = 0.8
    """Share of the budget for the reconstruction (0: none)."""
    fine_tune_lr: Factor = 5.0
    """Learning-rate factor of the fine-tuning."""

    @property
    def needs(self) -> frozenset[Ability]:
        return frozenset({"patches"} if self.pretrain else ())


@dataclass(frozen=True, kw_only=True)
class OneStageOptions(MethodOptions):
    """Fine-tunes on uniform draws from all labels so far."""

    keeps = "row numbers of all labels"
    cost = "1"

    pretrain: ClassVar[float] = 0.0
    fine_tune_lr: ClassVar[float] = 1.0


@dataclass(frozen=True, kw_only=True)
class JointOptions(TwoStageOptions):
    """Learns all time steps at once in two stages, under the budgets of all: a reference, not a bound."""

    keeps = "row numbers of all images, all labels; the decoder"


@dataclass(frozen=True, kw_only=True)
class CaSSLeOptions(MethodOptions):
    """Learns features from pairs of views that still predict its former features, then a classifier."""

    keeps = "row numbers of all labels; the network of the time step before; projector and predictor"
    cost = "2, and 8/3 after the first time step (teacher 2/3); the classifier 1/3"

    ssl: Annotated[float, Valid(lambda x: 0 <= x < 1, "give a share from 0 that leaves room for the classifier")] = 0.8
    """Share of the budget that is spent on views; the rest goes to the classifier."""
    strength: Weight = 1.0
    """Weight of the distillation (0: fine-tuned Barlow Twins without a teacher)."""
    off_diagonal: Weight = 5e-3
    """Weight of the redundancy between features."""
    scale: Factor = 0.1
    """Factor of every Barlow Twins loss."""
    width: Count = 2048
    """Number of features that the projector returns."""
    classifier: Literal["probe", "fine_tune"] = "probe"
    """probe: the labels train the head alone; fine_tune: the encoder too, at three times the price."""


@dataclass(frozen=True, kw_only=True)
class DualNetOptions(MethodOptions):
    """Learns slow features from views by look-ahead, modulated by a fast branch trained on labels."""

    keeps = "row numbers and logits of all labels; fast branch and projector"
    cost = "2 in an update on views, 1 in one on labels (a third of the batch rests); 1/3 once for each label"

    beta: Share = 0.05
    """Share of the way that the encoder keeps after a look-ahead (1: plain updates)."""
    outer: Count = 2
    """Look-aheads in a cycle."""
    inner: Count = 2
    """Updates on views in a look-ahead."""
    soft_weight: Weight = 10.0
    """Weight of the divergence from stored logits, a mean over classes too, so that many classes weaken it."""
    temperature: Positive = 2.0
    """Divides the logits that are compared with stored ones."""
    threshold: Annotated[float, Valid(lambda x: 0 < x <= 1, "give a probability above 0, or no label is learned")] = 0.5
    """Probability that a cycle draws from the labeled images and not from the unlabeled ones."""
    strategy: Literal["task_free", "task_aware"] = "task_free"
    """task_aware: the loss on this time step's labels is restricted to the classes revealed in it."""
    width: Count = 2048
    """Number of features that the projector returns."""

    @property
    def needs(self) -> frozenset[Ability]:
        return frozenset({"stages"})


@dataclass(frozen=True, kw_only=True)
class CCICOptions(MethodOptions):
    """Mixes labels, memory and guesses, separates present from past, and classifies by neighbors."""

    keeps = "row numbers and embeddings of all labels"
    cost = "10/3 (8/3 in the first time step and the last tenth of others); 1/3 per label so far at the end"

    augmentations: Count = 3
    """Views of an unlabeled image whose predictions are averaged for its guess, and which are all learned from."""
    temperature: Positive = 0.5
    """Sharpens the averaged prediction (1: leaves it as it is)."""
    beta: FromZero = 0.75
    """Parameter of the beta distribution that images are mixed by (0: not mixed)."""
    strength: FromZero = 0.5
    """Weight of the guesses (0: no guesses)."""
    cross: FromZero = 0.5
    """Weight of separating this time step's unlabeled images from the memory."""
    memory_weight: FromZero = 1.0
    """Weight of the memory's cross-entropy."""
    triplet: bool = True
    """Add a triplet loss, which pulls embeddings of a class together and pushes other classes away."""
    neighbors: Count = 3
    """Stored labels that vote on a test image."""


@dataclass(frozen=True, kw_only=True)
class FixMatchOptions(MethodOptions):
    """Replays labels half and half, and learns from its own confident guesses of unlabeled images."""

    keeps = "row numbers of all labels"
    cost = "1, and 4/3 for an unlabeled image (weak view 1/3)"

    unlabeled: Annotated[float, Valid(lambda x: 0 <= x < 1, "give a share from 0 that leaves room for labels")] = 1 / 3
    """Share of unlabeled images in a batch (0: balanced replay); half of the rest is this time step's labels."""
    threshold: Annotated[float, Valid(lambda x: x >= 0, "give a probability, or more than 1 for no guesses")] = 0.95
    """Learn from a guess of at least this probability (above 1: from none)."""
    strength: Weight = 1.0
    """Weight of the guesses."""


@dataclass(frozen=True, kw_only=True)
class LarderOptions(MethodOptions):
    """Guesses labels as images arrive, remembers those it can trust, and replays them beside all labels."""

    keeps = "row numbers of all labels and of unlabeled images with trusted guesses; averaged weights"
    cost = "1; before, 1/3 for each new label and arriving image, within 30 % of the budget (frozen: 75 %)"

    guessed: Annotated[float, Valid(lambda x: 0 <= x < 1, "give a share from 0 that leaves room for labels")] = 0.75
    """Share of remembered guesses in a batch if all were right, less as they are trusted less (0: no guesses)."""
    per_label: Annotated[int | None, Valid(lambda n: n is None or n >= 1, "give at least 1, or leave it out")] = None
    """Remember at most this many guesses for each label of a class and time step (all that can be trusted)."""

    @property
    def solves_frozen(self) -> bool:
        return True
