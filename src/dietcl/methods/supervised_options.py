"""Options of the methods that learn from labeled images alone; free of torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from dietcl.checked_options import Count, FormerName, Later, Positive, Share, Valid, Weight
from dietcl.errors import UserError
from dietcl.methods.method_options import MethodOptions, joint_limits
from dietcl.models.presets import Ability

_MemorySize = Annotated[int | None, Valid(lambda n: n is None or n >= 1, "keep at least one label, or leave it out")]


@dataclass(frozen=True, kw_only=True)
class EROptions(MethodOptions):
    """Replays all labels so far: uniformly, or half of this time step and half of the past."""

    keeps = "row numbers of all labels (or of a reservoir)"
    cost = "1"

    sampling: Literal["uniform", "balanced"] = "balanced"
    """uniform: the complete batch from all labels so far; balanced: half this time step's, half the past's."""
    memory: _MemorySize = None
    """Keep a reservoir of this many labels of earlier time steps (all by default)."""
    dietcl_flops: bool = False
    """Spend only the FLOPs that DietCL spends of a budget priced by images, whose reconstructions are cheaper."""
    threshold: str = "400"
    """DietCL's threshold, with --dietcl-flops: updates' worth of passes, or a share of the budget such as 80%."""

    def __post_init__(self) -> None:
        super().__post_init__()
        joint_limits(self.threshold)

    @property
    def needs(self) -> frozenset[Ability]:
        return frozenset({"patches"} if self.dietcl_flops else ())


@dataclass(frozen=True, kw_only=True)
class ERACEOptions(MethodOptions):
    """Replays like ER, but incoming images lower no class's score that is not among them."""

    keeps = "row numbers of all labels"
    cost = "1"

    cosine: bool = True
    """Classify by the cosine between features and class weights (otherwise the head is linear)."""


@dataclass(frozen=True, kw_only=True)
class EWCOptions(MethodOptions):
    """Fine-tunes, but holds weights with much Fisher information near their former values."""

    keeps = "weights and their importance, once per time step (--online: once)"
    cost = "1, and 1 per label for the Fisher pass"

    strength: Weight = 10.0
    """Weight of the penalty (0: fine-tuning without a Fisher pass)."""
    online: bool = False
    """Keep one importance for all time steps together (otherwise one for each, so that memory grows with them)."""
    decay: Annotated[float, Valid(lambda x: 0 <= x <= 1, "give a factor from 0 to 1")] = 1.0
    """Factor on the importance so far when another time step's is added, with --online."""
    fisher: Literal["per_sample", "batch_mean"] = "per_sample"
    """Square the gradient of each image, or that of a micro-batch's mean, which is much smaller."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay != 1 and not self.online:
            raise UserError(f"--decay {self.decay}: only with --online are importances added up; use both")


@dataclass(frozen=True, kw_only=True)
class MASOptions(MethodOptions):
    """Fine-tunes, but holds weights that the outputs are sensitive to near their former values."""

    keeps = "weights and their importance"
    cost = "1, and 1 per label for the importance pass"

    strength: Weight = 1.0
    """Weight of the penalty (0: fine-tuning without an importance pass)."""
    decay: Share = 0.5
    """Share of the importance so far in the next one; this time step's own has the rest."""


@dataclass(frozen=True, kw_only=True)
class GDumbOptions(MethodOptions):
    """Resets its weights at every time step and learns from scratch from the memory alone."""

    keeps = "row numbers of all labels (or of a share of them, equal over classes)"
    cost = "1"

    memory: _MemorySize = None
    """Keep this many labels in all, balanced over classes (all by default)."""


@dataclass(frozen=True, kw_only=True)
class L2POptions(MethodOptions):
    """Learns prompts and a head for a frozen encoder; each image selects its prompts from a pool."""

    keeps = "row numbers of all labels; prompts and keys; the first encoder if it is trained"
    cost = "4/3 (query 1/3; more in FLOPs by the prompts' tokens, less by the frozen weights)"

    prompts: Annotated[Count, FormerName("pool")] = 10
    """Prompts in the pool."""
    length: Count = 5
    """Tokens of a prompt."""
    top: int = 5
    """Prompts selected for an image."""
    strength: Weight = 0.1
    """Weight of pulling the selected keys towards the queries that selected them (0: keys are not trained)."""
    frozen: bool = True
    """Leave the encoder as it is; otherwise it is trained too, and a copy of the first one computes the queries."""
    replay: bool = True
    """Draw half of a batch from all labels so far; otherwise only this time step's are learned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.top <= self.prompts:
            raise UserError(f"--top {self.top}: give a number from 1 to the {self.prompts} of --prompts")

    @property
    def needs(self) -> frozenset[Ability]:
        return frozenset({"prompts"})

    @property
    def trains_encoder(self) -> bool:
        return not self.frozen


@dataclass(frozen=True, kw_only=True)
class NaiveOptions(MethodOptions):
    """Fine-tunes on this time step's labels alone, and so forgets."""

    keeps = "nothing"
    cost = "1"


@dataclass(frozen=True, kw_only=True)
class LinearProbeOptions(MethodOptions):
    """Fits a linear head to all labels so far on a frozen encoder."""

    keeps = "features of all labels and the solution (ridge), or row numbers of all labels (sgd)"
    cost = "1/3 (ridge: every label once, and the solve; sgd: every image drawn, and the head)"

    head: Literal["ridge", "sgd"] = "ridge"
    """ridge: solve the head from stored features after every time step; sgd: learn it by updates."""
    augment: Annotated[bool, Later()] = True
    """sgd: train on random crops; otherwise on images as they are, each computed once but charged at every draw."""
    scale: Annotated[Literal["each", "half"], Later()] = "each"
    """ridge: divide each feature by its own spread, or only half whiten features, which few labels need."""

    @property
    def trains_encoder(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class NCMOptions(MethodOptions):
    """Predicts the class whose mean feature has the largest cosine with the image's; frozen encoder."""

    keeps = "a sum of features and a count for every class"
    cost = "1/3, every label once"

    @property
    def trains_encoder(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class RanPACOptions(MethodOptions):
    """Adapts the encoder to the first labels, then solves a head on random features of it."""

    keeps = "features of all labels while they are fewer than random features, then sums of products; the head"
    cost = "1 in the first time step with labels, to adapt; 1/3, every label once, and the solve"

    random_features: Count = 10_000
    """Number of random features (M); as many labels cost a solve of about 9 M³ FLOPs, fewer labels far less."""
    adapt: bool = True
    """Fine-tune the encoder on the labels of the first time step that has any; it is frozen from then on."""

    @property
    def trains_encoder(self) -> bool:
        return self.adapt


@dataclass(frozen=True, kw_only=True)
class ACMOptions(MethodOptions):
    """Lets the nearest stored features vote, which are never forgotten; frozen encoder."""

    keeps = "features of all labels"
    cost = "1/3, every label once"

    neighbors: Annotated[int, Valid(lambda n: n >= 1, "let at least one neighbor vote")] = 2
    """How many of the nearest labels vote; the nearest decides among equal votes."""

    @property
    def trains_encoder(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class DERppOptions(MethodOptions):
    """Replays the past by its labels and by the logits that its images had at their time step's end."""

    keeps = "row numbers of all labels; the logits of their images"
    cost = "1, and 1/3 for each new label (its logits)"

    alpha: Weight = 0.3
    """Weight of the distance to the stored logits (0: none are stored, and half of the batch is memory)."""
    beta: Weight = 0.5
    """Weight of the cross-entropy on the memory."""


@dataclass(frozen=True, kw_only=True)
class LwFOptions(MethodOptions):
    """Fine-tunes while keeping the last time step's predictions for earlier classes."""

    keeps = "the network of the time step before"
    cost = "1, and 4/3 after the first time step (teacher 1/3)"

    strength: Weight = 1.0
    """Weight of the distillation (0: fine-tuning without a teacher)."""
    temperature: Positive = 2.0
    """Divides the logits that are compared; above 1, unlikely classes count more."""
