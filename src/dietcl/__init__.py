"""Continual learning from sparsely labeled streams under a computation budget; __init__.pyi has the types."""

from importlib import import_module
from typing import Any

__version__ = "0.3.0"

_HOMES = {
    "dietcl.api": "Comparison Run StreamInfo compare load manifest_hash open_run open_stream prepare reader train "
    "train_config weights_identity",
    "dietcl.cli.main": "main",
    "dietcl.config": "Evaluation PRESETS RunConfig Training",
    "dietcl.config_builder": "build_config",
    "dietcl.errors": "NotFinite Stopped UserError",
    "dietcl.methods": "register_method",
    "dietcl.methods.base": "Method Phase Reserve Sweep Term",
    "dietcl.methods.method_options": "Search",
    "dietcl.model": "Model Prediction",
    "dietcl.solved_head": "solved_head_accuracy",
    "dietcl.streams.holdout": "hold_out",
    "dietcl.streams.options": "Mix Recipe",
    "dietcl.streams.sampler": "Pool",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = [*_HOME_OF, "methods"]


def __getattr__(name: str) -> Any:
    """Load a name on first use: `import dietcl` alone must not take the time to load torch."""
    if name == "methods":
        return import_module("dietcl.methods")  # a module that can be called
    if name not in _HOME_OF:
        raise AttributeError(f"module 'dietcl' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
