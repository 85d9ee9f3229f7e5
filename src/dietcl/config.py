"""The resolved configuration of a run, and the presets it starts from; free of torch."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

from dietcl.budget.budget import Budget
from dietcl.checked_options import CheckedOptions, Count, FromZero, Later, Limit, Valid, check_options, plain_values
from dietcl.errors import UserError
from dietcl.files import default_cache
from dietcl.methods.method_options import Options
from dietcl.models.presets import MODELS, ModelConfig
from dietcl.streams.options import Augmentation, Recipe

# Far above any use; without a bound the optimizer's own arithmetic overflows.
LearningRate = Annotated[float, Valid(lambda value: 0 < value <= 100, "give a number above 0, at most 100")]
Beta = Annotated[float, Valid(lambda value: 0 <= value < 1, "give a number from 0 to below 1")]


@dataclass(frozen=True, kw_only=True)
class Training(CheckedOptions):
    """The recipe shared by all methods; the defaults are the paper's."""

    batch: int = 1024
    """Images per update."""
    micro_batch: int = 256
    """Images per micro-batch; an update is the mean of batch / micro-batch of them."""
    lr: LearningRate = 4e-4
    """Peak learning rate of the encoder and the decoder (the paper's 1e-4 per 256 images)."""
    head_lr: LearningRate = 4e-4
    """Peak learning rate of the head."""
    lr_floor: FromZero = 5e-5
    """Learning rate at the end of a phase's cosine (at most half the peak)."""
    layer_decay: Annotated[float, Valid(lambda x: 0 < x <= 1, "give a number above 0, at most 1")] = 0.65
    """Factor on the learning rate per block, from the last block down (1: the same for all)."""
    weight_decay: FromZero = 0.05
    """AdamW's weight decay (not on biases, norms, the class token and position tables)."""
    beta1: Beta = 0.9
    """AdamW's first beta."""
    beta2: Beta = 0.95
    """AdamW's second beta."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 1 or self.micro_batch < 1 or self.batch % self.micro_batch:
            given = f"--batch {self.batch} --micro-batch {self.micro_batch}"
            raise UserError(f"{given}: the batch must be a multiple of the micro-batch")


@dataclass(frozen=True, kw_only=True)
class Pretraining(CheckedOptions):
    """How long and how fast to pre-train."""

    updates: Count = 2000
    """Number of updates."""
    batch: Count = 128
    """Images per update."""
    lr: LearningRate = 2e-3
    """Peak learning rate, reached after the warm-up; a cosine lowers it to 0."""
    warmup: Annotated[float, Valid(lambda x: 0 <= x < 1, "give a share from 0 to below 1")] = 0.05
    """Share of the updates that the warm-up takes."""
    weight_decay: FromZero = 0.05
    """AdamW's weight decay."""
    crop: Annotated[float, Valid(lambda x: 0 < x <= 1, "give a share of the area above 0, at most 1")] = 0.2
    """Smallest share of the image's area that a random crop keeps."""
    flip: bool = True
    """Mirror half of the images."""
    checkpoint_every: Count = 200
    """Updates between checkpoints."""
    seed: int = 0
    """Seed of the initial weights, the draws and the masks."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(CheckedOptions):
    """What is measured after each time step."""

    test_images: Limit = None
    """Evaluate on a fixed, seeded, stratified sample of this many test images (all by default)."""
    all_at_end: Annotated[bool, Later()] = False
    """Evaluate the last time step on all test images, and draw the sample for earlier ones alike for every seed."""
    curves: Annotated[int, Valid(lambda value: value >= 0, "give a whole number from 0")] = 0
    """Also evaluate at each time step's start and after each of N equal parts of it (the stability gap)."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A size: the network, the shared recipe, the augmentation and the methods' options that belong together."""

    model: ModelConfig
    training: Training = field(default_factory=Training)
    augmentation: Augmentation = field(default_factory=Augmentation)
    budget: str = "500"
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)  # by method, options with other defaults


_SMALL: dict[str, dict[str, Any]] = {
    "dietcl": {"alpha": 1.0, "threshold": "80%"},  # of 1, 5 and 50, the best on early time steps
    "er": {"threshold": "80%"},
    "cassle": {"width": 256},  # wider ones would cost more than the encoder
    "dualnet": {"width": 256},
    "two_stage": {"fine_tune_lr": 1.0},  # these sizes' rates are those of fine-tuning
    "joint": {"fine_tune_lr": 1.0},
    "ranpac": {"random_features": 2000},
}
_PHOTOS: dict[str, dict[str, Any]] = {"linear_probe": {"scale": "half"}}  # hundreds of features, and few labels
_small_preset = partial(Preset, augmentation=Augmentation(crop=0.5), budget="40", methods=_SMALL)
# Larger rates, because updates are few and small.
_MICRO = Training(batch=16, micro_batch=16, lr=4e-3, head_lr=6e-2, lr_floor=5e-4)
_NANO = Training(batch=64, micro_batch=64, lr=4e-3, head_lr=2e-2, lr_floor=5e-4)
# A trained encoder of photos: rates that do not spoil it.
_LITE = Training(batch=64, micro_batch=64, lr=5e-4, head_lr=5e-3, lr_floor=5e-5, layer_decay=0.9)
_lite_preset = partial(_small_preset, training=_LITE, budget="200", methods=_SMALL | _PHOTOS)
PRESETS: dict[str, Preset] = {
    "micro": _small_preset(model=MODELS["micro"], training=_MICRO),  # 32 px on a laptop's CPU
    "nano": _small_preset(model=MODELS["nano"], training=_NANO),  # a quarter of its cost, for experiments of many runs
    # Photos on a laptop's CPU, features only; before `lite`, which is the one that the encoder's name stands for.
    "frozen": _lite_preset(model=dataclasses.replace(MODELS["lite"], train="head")),
    "lite": _lite_preset(model=MODELS["lite"]),
    **{name: Preset(model=MODELS[name], methods=_PHOTOS) for name in ("tiny", "small", "base", "large")},
}


def preset(name: str) -> Preset:
    """Return a preset by name."""
    if name not in PRESETS:
        raise UserError(f"--preset {name}: no such preset; choose from {', '.join(PRESETS)}")
    return PRESETS[name]


def stream_title(stream: str) -> str:
    """Return a short name for a stream: a manifest goes by its file, or by its folder if that says more."""
    path = Path(stream)
    title = path.parent.name or path.stem if path.stem == "manifest" else path.stem
    # What was prepared in the cache folder has the name of its data and a hash.
    return re.sub(r"-[0-9a-f]{12}$", "", title) if default_cache() in path.parents else title


class StreamSource(Protocol):
    """The options of a built-in stream or a pack: a dataclass that makes a manifest."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    mirror: bool

    def prepare(self, cache: Path, progress: Callable[[int, int | None], None] | None = None) -> Path:
        """Write the manifest to the cache folder unless it is there, and return its path."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(CheckedOptions):
    """Everything that decides what a run computes."""

    method: str
    method_config: Options
    stream: str  # name of a built-in stream, or the path of a manifest
    source: StreamSource | None  # options of a built-in stream; None for a manifest
    recipe: Recipe
    model: ModelConfig
    weights: str | None  # `shipped`, a file, or None for random weights
    training: Training
    augmentation: Augmentation
    budget: str
    accounting: Literal["images", "flops"] = "images"
    evaluation: Evaluation = field(default_factory=Evaluation)
    seed: int = 0
    first_time_steps: Limit = None  # learn only this many

    def __post_init__(self) -> None:
        super().__post_init__()
        # The options of a registered method need not check themselves.
        own = {field.name: getattr(self.method_config, field.name) for field in dataclasses.fields(self.method_config)}
        check_options(type(self.method_config), own)
        Budget.parse(self.budget)

    def resolved(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        plain: dict[str, Any] = json.loads(json.dumps(plain_values(self), default=str))
        return plain

    def hash(self) -> str:
        """Return an identifier of the configuration."""
        return hashlib.sha256(json.dumps(self.resolved(), sort_keys=True).encode()).hexdigest()[:12]
