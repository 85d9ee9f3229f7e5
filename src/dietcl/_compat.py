"""Lets timm be imported where a CPU build of torch meets a CUDA build of torchvision."""

import torch

_OPERATORS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def _declare_missing_operators() -> torch.library.Library | None:
    """Declare the torchvision operators whose compiled half is absent, so that its Python half imports."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name, schema in _OPERATORS.items():
            if not hasattr(torch.ops.torchvision, name):
                library.define(schema)
        return library
    return None


# A Library unregisters its schemas when it is collected, so it lives as long as this module.
_LIBRARY = _declare_missing_operators()
