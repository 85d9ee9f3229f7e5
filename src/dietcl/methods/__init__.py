"""The registry of methods by name; free of torch, because a method's file is imported when its class is asked for."""

from __future__ import annotations

import difflib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from dietcl.errors import UserError
from dietcl.methods import semi_supervised_options as semi
from dietcl.methods import supervised_options as supervised
from dietcl.methods.method_options import MethodOptions, Options
from dietcl.models.presets import Ability

if TYPE_CHECKING:
    from dietcl.methods.base import Method

    MethodClass = TypeVar("MethodClass", bound=type[Method])


@dataclass(frozen=True)
class Entry:
    """A method: what it does, its options, and where its class is."""

    name: str
    location: str
    """MODULE:CLASS."""
    description: str
    keeps: str
    """What the method stores between time steps."""
    cost: str
    """Passes per image drawn, in words."""
    options: type[Options]
    variants: Mapping[str, Options]
    """Named options, chosen as METHOD:VARIANT."""
    registered: type[Method] | None = None
    """The class, if `register_method` registered it."""


def _builtin(name: str, location: str, options: type[MethodOptions], **variants: dict[str, Any]) -> Entry:
    named = {variant: options(**values) for variant, values in variants.items()}
    return Entry(name, f"dietcl.methods.{location}", options.__doc__ or "", options.keeps, options.cost, options, named)


_DIETCL: dict[str, dict[str, Any]] = {
    "release": {"unlabeled": 0.4, "labeled": 0.3, "memory": 0.3, "threshold": "80%"},
    "labeled": {"reconstruct": "labeled"},
    "unbroken": {"restart": False},
}
_BUILTIN_METHODS = (
    _builtin("dietcl", "dietcl:DietCL", semi.DietCLOptions, **_DIETCL),
    _builtin("er", "er:ER", supervised.EROptions, uniform={"sampling": "uniform"}, dietcl_flops={"dietcl_flops": True}),
    _builtin("er_ace", "er:ERACE", supervised.ERACEOptions),
    _builtin("ewc", "ewc:EWC", supervised.EWCOptions),
    _builtin("mas", "ewc:MAS", supervised.MASOptions),
    _builtin("gdumb", "er:GDumb", supervised.GDumbOptions),
    _builtin("l2p", "l2p:L2P", supervised.L2POptions),
    _builtin("cassle", "cassle:CaSSLe", semi.CaSSLeOptions),
    _builtin("dualnet", "dualnet:DualNet", semi.DualNetOptions),
    _builtin("ccic", "ccic:CCIC", semi.CCICOptions),
    _builtin("one_stage", "dietcl:TwoStage", semi.OneStageOptions),
    _builtin("two_stage", "dietcl:TwoStage", semi.TwoStageOptions),
    _builtin("joint", "dietcl:Joint", semi.JointOptions),
    _builtin("naive", "er:Naive", supervised.NaiveOptions),
    _builtin("linear_probe", "linear_probe:LinearProbe", supervised.LinearProbeOptions, sgd={"head": "sgd"}),
    _builtin("ncm", "nearest:NCM", supervised.NCMOptions),
    _builtin("ranpac", "ranpac:RanPAC", supervised.RanPACOptions, frozen={"adapt": False}),
    _builtin("acm", "nearest:ACM", supervised.ACMOptions),
    _builtin("derpp", "derpp:DERpp", supervised.DERppOptions),
    _builtin("fixmatch", "fixmatch:FixMatch", semi.FixMatchOptions),
    _builtin("lwf", "lwf:LwF", supervised.LwFOptions),
    _builtin("larder", "larder:LarderMethod", semi.LarderOptions, small={"per_label": 1}),
)
DEFAULT_METHOD = "larder"
METHODS: dict[str, Entry] = {entry.name: entry for entry in _BUILTIN_METHODS}


def method_entry(name: str) -> Entry:
    """Return the entry of METHOD."""
    if name not in METHODS:
        similar = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {similar[0]}?" if similar else f"choose from {', '.join(METHODS)}"
        raise UserError(f"--method {name}: no such method; {hint}")
    return METHODS[name]


def method_class(name: str) -> type[Method]:
    """Return the class of METHOD; this imports torch."""
    entry = method_entry(name)
    found: type[Method] = entry.registered or pkgutil.resolve_name(entry.location)
    return found


def method_config(name: str) -> Options:
    """Return the options of METHOD, all at their defaults, or of METHOD:VARIANT."""
    method, _, variant = name.partition(":")
    entry = method_entry(method)
    if not variant:
        return entry.options()
    if variant not in entry.variants:
        known = ", ".join(f"{method}:{other}" for other in entry.variants) or "none"
        raise UserError(f"--method {name}: no such variant; there are {known}")
    return entry.variants[variant]


def needed_abilities(name: str) -> frozenset[Ability]:
    """Return what METHOD or METHOD:VARIANT needs of an encoder besides features."""
    return getattr(method_config(name), "needs", frozenset())


def every_method() -> list[str]:
    """List METHOD and METHOD:VARIANT of all methods."""
    return [name for method in METHODS for name in (method, *(f"{method}:{v}" for v in METHODS[method].variants))]


def describe() -> list[Entry]:
    """List the entries of all methods."""
    return list(METHODS.values())


def register_method(name: str) -> Callable[[MethodClass], MethodClass]:
    """Return a class decorator that registers a `Method` under a name, for every function that takes one.

    Its docstring's first line is the description. It may have `Config` (a dataclass of options, all with defaults),
    `keeps`, `cost` and `variants`. Registering the same class again, as a notebook does, replaces it.
    """

    def register(method: MethodClass) -> MethodClass:
        from dietcl.methods.base import Method  # a class to register has loaded torch

        location = f"{method.__module__}:{method.__qualname__}"
        if not issubclass(method, Method) or inspect.isabstract(method):
            raise UserError(f"register_method({name!r}): {location} is not a Method with next_phase and losses")
        if not name.isidentifier():
            raise UserError(f"register_method({name!r}): give a name of letters, digits and underscores")
        if name in METHODS and METHODS[name].location != location:
            raise UserError(f"register_method({name!r}): {METHODS[name].location} has this name; choose another")
        if not is_dataclass(method.Config):
            raise UserError(f"register_method({name!r}): {method.__qualname__}.Config is not a dataclass; make it one")
        try:
            method.Config()
        except TypeError as error:
            raise UserError(f"register_method({name!r}): give every option of Config a default ({error})") from error
        about = (method.__doc__ or "").strip().partition("\n")[0]
        METHODS[name] = Entry(name, location, about, method.keeps, method.cost, method.Config, method.variants, method)
        return method

    return register


class _CallableModule(ModuleType):
    """Lets `dietcl.methods()` list the methods, where `dietcl.methods` is also the package that holds them."""

    def __call__(self) -> list[Entry]:
        return describe()


sys.modules[__name__].__class__ = _CallableModule
