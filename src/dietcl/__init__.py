"""Continual learning from sparsely labeled streams under a computation budget."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dietcl.api import (
        Comparison,
        Run,
        StreamInfo,
        compare,
        load,
        manifest_hash,
        open_run,
        open_stream,
        prepare,
        reader,
        train,
        train_config,
        weights_identity,
    )
    from dietcl.cli.main import main
    from dietcl.config import PRESETS, RunConfig, Training
    from dietcl.config_builder import build_config
    from dietcl.errors import NotFinite, Stopped, UserError
    from dietcl.methods import describe as methods
    from dietcl.methods import register_method
    from dietcl.methods.base import Method, Phase, Reserve, Sweep, Term
    from dietcl.methods.method_options import Search
    from dietcl.model import Model, Prediction
    from dietcl.solved_head import solved_head_accuracy
    from dietcl.streams.holdout import hold_out
    from dietcl.streams.options import Mix, Recipe

__version__ = "0.2.0"

_HOMES = {  # all other names are in dietcl.api
    "dietcl.cli.main": ("main",),
    "dietcl.config": ("PRESETS", "RunConfig", "Training"),
    "dietcl.config_builder": ("build_config",),
    "dietcl.errors": ("NotFinite", "Stopped", "UserError"),
    "dietcl.methods": ("register_method",),
    "dietcl.methods.base": ("Method", "Phase", "Reserve", "Sweep", "Term"),
    "dietcl.methods.method_options": ("Search",),
    "dietcl.model": ("Model", "Prediction"),
    "dietcl.solved_head": ("solved_head_accuracy",),
    "dietcl.streams.holdout": ("hold_out",),
    "dietcl.streams.options": ("Mix", "Recipe"),
}
__all__ = ["PRESETS", "Comparison", "Method", "Mix", "Model", "NotFinite", "Phase", "Prediction", "Recipe", "Reserve"]
__all__ += ["Run", "RunConfig", "Search", "Stopped", "StreamInfo", "Sweep", "Term", "Training", "UserError"]
__all__ += ["build_config", "compare", "hold_out", "load", "main", "manifest_hash", "methods", "open_run"]
__all__ += ["open_stream", "prepare", "reader", "register_method", "solved_head_accuracy", "train", "train_config"]
__all__ += ["weights_identity"]


def __getattr__(name: str) -> Any:
    """Load a name on first use: `import dietcl` alone must not take the time to load torch."""
    if name not in __all__:
        raise AttributeError(f"module 'dietcl' has no attribute {name!r}")
    if name == "methods":
        return import_module("dietcl.methods")  # a module that can be called
    home = next((module for module, names in _HOMES.items() if name in names), "dietcl.api")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
