"""The methods by name; a new one is a file here and a line in this table."""

import difflib
import importlib
from dataclasses import dataclass
from typing import Any

from dietcl.errors import UserError
from dietcl.methods.base import Method

METHODS: dict[str, str] = {
    "dietcl": "dietcl.methods.dietcl:DietCL",
    "er": "dietcl.methods.er:ER",
    "er_ace": "dietcl.methods.er_ace:ERACE",
    "ewc": "dietcl.methods.ewc:EWC",
    "mas": "dietcl.methods.mas:MAS",
    "gdumb": "dietcl.methods.gdumb:GDumb",
    "l2p": "dietcl.methods.l2p:L2P",
    "cassle": "dietcl.methods.cassle:CaSSLe",
    "dualnet": "dietcl.methods.dualnet:DualNet",
    "ccic": "dietcl.methods.ccic:CCIC",
    "one_stage": "dietcl.methods.one_stage:OneStage",
    "two_stage": "dietcl.methods.two_stage:TwoStage",
    "joint": "dietcl.methods.joint:Joint",
    "naive": "dietcl.methods.naive:Naive",
    "linear_probe": "dietcl.methods.linear_probe:LinearProbe",
    "ncm": "dietcl.methods.ncm:NCM",
    "ranpac": "dietcl.methods.ranpac:RanPAC",
    "acm": "dietcl.methods.acm:ACM",
    "derpp": "dietcl.methods.derpp:DERpp",
    "fixmatch": "dietcl.methods.fixmatch:FixMatch",
    "lwf": "dietcl.methods.lwf:LwF",
}


@dataclass(frozen=True)
class Entry:
    """What `dietcl methods` says of a method."""

    name: str
    description: str
    keeps: str
    cost: str
    variants: tuple[str, ...]


def method_class(name: str) -> type[Method]:
    """Return a method's class by its registry name."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(METHODS)}"
        raise UserError(f"--method {name}: no such method; {hint}")
    module, _, attribute = METHODS[name].partition(":")
    found: type[Method] = getattr(importlib.import_module(module), attribute)
    return found


def method_config(name: str) -> Any:
    """Return the default options of a method (`dietcl`) or of one of its variants (`dietcl:release`)."""
    base, _, variant = name.partition(":")
    found = method_class(base)
    if not variant:
        return found.Config()
    if variant not in found.variants:
        known = ", ".join(f"{base}:{other}" for other in found.variants) or "none"
        raise UserError(f"--method {name}: no such variant; there are {known}")
    return found.variants[variant]


def every_method() -> list[str]:
    """List METHOD and METHOD:VARIANT of all."""
    return [
        name for base in METHODS for name in (base, *(f"{base}:{variant}" for variant in method_class(base).variants))
    ]


def describe() -> list[Entry]:
    """List all methods."""
    entries = []
    for name in METHODS:
        found = method_class(name)
        description = (found.__doc__ or "").strip().splitlines()[0]
        entries.append(Entry(name, description, found.keeps, found.cost, tuple(found.variants)))
    return entries
