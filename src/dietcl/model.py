"""A trained model: everything needed to predict, saved as model.safetensors and model.json, without pickle."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dietcl import __version__
from dietcl.budget.budget import Budget
from dietcl.budget.cost import CostModel
from dietcl.budget.ledger import Ledger
from dietcl.checked_options import Count, check_options, check_value, plain_values, with_plain_values
from dietcl.engine.checkpoint_files import below, on_cpu
from dietcl.engine.device import pick_device, pick_precision
from dietcl.engine.learner import Learner
from dietcl.errors import UserError, reason
from dietcl.execution import Execution, Precision, parse_size
from dietcl.files import write_bytes, write_json
from dietcl.methods import METHODS, method_class, method_config
from dietcl.methods.base import Method
from dietcl.models.known_features import feature_lookup
from dietcl.models.net import Net
from dietcl.models.network import build_network
from dietcl.models.presets import ModelConfig
from dietcl.plural import plural
from dietcl.streams.decode import Unreadable
from dietcl.streams.feature_lookup import FeatureLookup
from dietcl.streams.image_batches import ImageDecoder
from dietcl.streams.image_input import ImageInput
from dietcl.streams.loader import lazy_images
from dietcl.streams.normalize import normalize
from dietcl.streams.storage import Rows, Storage

DESCRIPTION, TENSORS = "model.json", "model.safetensors"
FORMAT = 2  # format 1 has no pixel statistics: a model of it takes those of the installed timm
BATCH = 64
_NEEDED = ("format", "method", "method_config", "model", "classes", "seed", "cost", "tensors", "digest")
_MODULES, _STATE = "modules/", "method/"


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image, the best first."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def name(self) -> str:
        """The most probable class."""
        return self.classes[0]

    @property
    def probability(self) -> float:
        """The probability of the most probable class."""
        return self.probabilities[0]


class Model:
    """Classifies images as the run that trained it does."""

    def __init__(
        self,
        description: dict[str, Any],
        net: Net,
        ledger: Ledger,
        method: Method,
        lookup: FeatureLookup | None = None,
    ) -> None:
        self.description, self.lookup = description, lookup
        self.classes: tuple[str, ...] = tuple(description["classes"])
        self.image_size: int = description["model"]["image_size"]
        self.resizing = ModelConfig(**description["model"]).resizing
        self._net, self._ledger, self._method = net, ledger, method

    def __repr__(self) -> str:
        encoder, method = self.description["model"]["encoder"], self.description["method"]
        return f"Model({method}, {encoder} at {self.image_size} px, {plural(len(self.classes), 'class')})"

    def predict(self, images: ImageInput | Iterable[ImageInput], top: int = 1, batch: int = BATCH) -> list[Prediction]:
        """Return the most probable classes of each image; one that cannot be read raises UserError."""
        found: list[Prediction] = []
        for image, prediction in self.iterate(_each(images), top, batch):
            if isinstance(prediction, Unreadable):
                title = image if isinstance(image, str | Path) else f"image {len(found)}"
                raise UserError(f"{title}: {prediction}")
            found.append(prediction)
        return found

    def probabilities(self, images: ImageInput | Iterable[ImageInput], batch: int = BATCH) -> npt.NDArray[np.float32]:
        """Return the probability of every class [images, classes], in the order of `classes`."""
        every = self.predict(images, len(self.classes), batch)
        number = {name: i for i, name in enumerate(self.classes)}
        table = np.zeros((len(every), len(self.classes)), np.float32)
        for row, prediction in zip(table, every, strict=True):
            row[[number[name] for name in prediction.classes]] = prediction.probabilities
        return table

    def iterate(
        self, images: Iterable[ImageInput], top: int = 1, batch: int = BATCH
    ) -> Iterator[tuple[ImageInput, Prediction | Unreadable]]:
        """Yield each image with its prediction, or why it cannot be read; the next batch is decoded meanwhile."""
        check_value("top", Count, top)
        check_value("batch", Count, batch)
        decoder = ImageDecoder(self.image_size, self.resizing, self._net.device, self.lookup)
        try:
            for part in decoder.batches(images, batch):
                answers = iter(self._best(part.readable_BCHW, top))
                for image, failure in zip(part.images, part.failures, strict=True):
                    yield image, next(answers) if failure is None else failure
        finally:
            self.keep_features()

    def scores(self, images: Tensor) -> Tensor:
        """Return the method's scores [images, classes] of uint8 squares [images, 3, size, size]."""
        return self._scores(normalize(images.to(self._net.device)))

    def stored_scores(self, storage: Storage, rows: Rows) -> Tensor:
        """Return the scores of images of a manifest, which are read only if their features are not known."""
        if self.lookup is None:
            return self.scores(storage.read(rows))
        device, known = self._net.device, self.lookup.rows(rows)
        images = lazy_images(known, rows, storage, device, lambda some: storage.read(rows[some]).to(device))
        return self._scores(images)

    def keep_features(self) -> None:
        """Save features that were computed to the cache."""
        if self.lookup is not None:
            self.lookup.flush()

    def _scores(self, images: Tensor) -> Tensor:
        with self._ledger.free(), torch.no_grad():
            return self._method.predict(self._net, images).float()

    def _best(self, images_BCHW: Tensor, top: int) -> list[Prediction]:
        if not len(images_BCHW):
            return []
        scores_BC = self._scores(images_BCHW)
        # By score, and the first of equal ones, as in the evaluation of a run: probabilities may round to equals.
        best_BT = scores_BC.argmax(1, keepdim=True)
        if top > 1:
            best_BT = scores_BC.argsort(dim=1, descending=True, stable=True)[:, :top]
        shares_BT = self._method.probabilities(scores_BC).gather(1, best_BT)
        pairs = zip(best_BT.tolist(), shares_BT.tolist(), strict=True)
        return [Prediction(tuple(self.classes[i] for i in row), tuple(shares)) for row, shares in pairs]


def save_model(learner: Learner, folder: Path) -> None:
    """Write everything that the learner's method needs to predict into a folder."""
    method, config = learner.method, learner.config
    tensors = learner.network.merged_state(method.predict_weights())
    for name, module in method.predict_modules().items():
        tensors |= {f"{_MODULES}{name}/{key}": value for key, value in module.state_dict().items()}
    tensors |= {f"{_STATE}{name}": value for name, value in method.predict_state().items()}
    data = save(on_cpu(tensors), {"format": str(FORMAT)})
    model = dataclasses.replace(config.model, train="full")  # its adapters are merged
    resizing = {
        "crop": f"the square in the middle, {model.crop_ratio:g} of the shorter side",
        "resize": f"{model.interpolation}, antialiased",
        "size": model.image_size,
    }
    description = {
        "format": FORMAT,
        "dietcl": __version__,
        "method": config.method,
        "method_config": plain_values(config.method_config),
        "model": plain_values(model),
        "classes": list(learner.stream.classes[: learner.net.classes]),
        "preprocessing": {**resizing, "mean": learner.network.pixel_mean, "std": learner.network.pixel_std},
        "frozen": learner.loader.lookup is not None,
        "seed": config.seed,
        "cost": dataclasses.asdict(learner.ledger.cost.whole or learner.ledger.cost),
        "tensors": {name: [str(value.dtype).removeprefix("torch."), *value.shape] for name, value in tensors.items()},
        "digest": hashlib.sha256(data).hexdigest(),
    }
    write_bytes(folder / TENSORS, data)
    write_json(folder / DESCRIPTION, description)


def load_model(
    path: Path | str, device: str = "auto", precision: Precision = "auto", cache_size: str = Execution.cache_size
) -> Model:
    """Load the model of a run folder; UserError says what is missing."""
    check_options(Execution, {"device": device, "precision": precision, "cache_size": cache_size})
    folder = _folder_of(Path(path))
    description = _read_description(folder / DESCRIPTION)
    tensors = _read_tensors(folder / TENSORS, description)
    place = pick_device(device)
    name, seed = description["method"], description["seed"]
    if name not in METHODS:
        advice = "import the file that registers it with register_method before the model is loaded"
        raise UserError(f"{folder}: there is no method {name}; {advice}")
    try:
        method = method_class(name)(with_plain_values(method_config(name), description["method_config"]))
        network = build_network(ModelConfig(**description["model"]), seed)
        if description["format"] > 1:
            network.expect_pixels(*(map(float, description["preprocessing"][name]) for name in ("mean", "std")))
        network.to(place)
        network.head.cosine_scale = method.cosine_scale
        ledger = Ledger(Budget(1, "updates"), "images", 1, CostModel.from_json(description["cost"]))
        kind = pick_precision(precision, place)
        # Only now, as a hash of the weights tells whose features they are.
        network.head.grow(len(description["classes"]), torch.Generator())
        network.load_state_dict({k: value for k, value in tensors.items() if not k.startswith((_MODULES, _STATE))})
        is_frozen = description.get("frozen", False)
        lookup = feature_lookup(network, parse_size(cache_size), kind, method.view) if is_frozen else None
        net = Net(network, ledger, seed, dict, lambda sentence: None, kind, lookup)
        method.setup(net)
        # First the state, because a method may need it to build its modules.
        method.load_predict_state({k: value.to(place) for k, value in below(tensors, _STATE).items()})
        for key, module in method.predict_modules().items():
            module.load_state_dict(below(tensors, f"{_MODULES}{key}/"))
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        files = f"{DESCRIPTION} and {TENSORS}"
        raise UserError(f"{folder}: its {files} do not fit this version ({reason(error)})") from None
    return Model(description, net, ledger, method, lookup)


def _folder_of(path: Path) -> Path:
    if path.name in (DESCRIPTION, TENSORS):
        path = path.parent
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; name a run folder, as `dietcl train` writes them")
    if (path / DESCRIPTION).is_file():
        return path
    if not (path / "config.json").is_file():
        raise UserError(f"{path}: holds no model; name a run folder, as `dietcl train` writes them")
    if (path / "finished").is_file():
        raise UserError(f"{path}: is a run of an earlier version, which kept no model; train it again with --fresh")
    raise UserError(f"{path}: the run is not finished, so it has no model yet; give its `dietcl train` command again")


def _read_description(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}); train the run again with --fresh") from None
    if not isinstance(found, dict) or (missing := [name for name in _NEEDED if name not in found]):
        what = f"lacks {', '.join(missing)}" if isinstance(found, dict) else "is not a JSON object"
        raise UserError(f"{path}: {what}, so the model is incomplete; train the run again with --fresh")
    if found["format"] not in range(1, FORMAT + 1):
        raise UserError(f"{path}: has format {found['format']}, and this version reads 1 to {FORMAT}; update dietcl")
    return found


def _read_tensors(path: Path, description: dict[str, Any]) -> dict[str, Tensor]:
    advice = "so the model is incomplete; train the run again with --fresh"
    if not path.is_file():
        raise UserError(f"{path}: is missing, {advice}")
    try:
        data = path.read_bytes()
        tensors: dict[str, Tensor] = load(data)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read ({reason(error)}), {advice}") from None
    if missing := [name for name in description["tensors"] if name not in tensors]:
        raise UserError(f"{path}: lacks {', '.join(missing[:3])}, {advice}")
    if hashlib.sha256(data).hexdigest() != description["digest"]:
        raise UserError(f"{path}: is damaged (its checksum is not the one in {DESCRIPTION}), {advice}")
    return tensors


def _each(images: ImageInput | Iterable[ImageInput]) -> Iterable[ImageInput]:
    """Return the images; a single one becomes a list."""
    is_single = isinstance(images, str | Path | bytes | Image.Image)
    if isinstance(images, Tensor) or (isinstance(images, np.ndarray) and images.dtype.kind not in "OU"):
        is_single = images.ndim < 4  # and a table's column of paths is not an image
    if not is_single and not isinstance(images, Iterable):
        raise UserError(f"{images!r} is not an image; give a path, a PIL image, an array, a tensor, or a list of these")
    return [images] if is_single else images  # type: ignore[list-item, return-value]
