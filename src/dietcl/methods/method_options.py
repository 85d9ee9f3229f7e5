"""What the options of all methods have in common: their type, and options found by a search; no torch."""

import math
from contextlib import suppress
from dataclasses import Field, dataclass
from typing import Any, ClassVar, Protocol

from dietcl.checked_options import CheckedOptions
from dietcl.errors import UserError
from dietcl.models.presets import Ability

AUTO = "auto"


class Options(Protocol):
    """The options of a method: any dataclass whose fields all have defaults."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """This method has no options."""


class MethodOptions(CheckedOptions):
    """Options of a built-in method, described without its class, which needs torch; the docstring says what it does."""

    keeps: ClassVar[str]
    """What the method stores between time steps."""
    cost: ClassVar[str]
    """Passes per image drawn, in words."""

    @property
    def needs(self) -> frozenset[Ability]:
        """What the encoder must be able to do besides features."""
        return frozenset()

    @property
    def trains_encoder(self) -> bool:
        """Whether the encoder ever learns."""
        return True

    @property
    def solves_frozen(self) -> bool:
        """Whether it learns in closed form where the encoder is frozen."""
        return not self.trains_encoder and not self.needs


@dataclass(frozen=True, kw_only=True)
class Search:
    """Declares, as class attribute `searched`, an option whose value "auto" is found by cross-validation."""

    option: str
    """Name of the option; its values are strings."""
    shares: tuple[float, ...]
    """Candidates, as shares of the budget; the option is set to their numbers of updates."""

    @property
    def flag(self) -> str:
        """The command-line option that requests the search."""
        return f"--{self.option.replace('_', '-')} {AUTO}"


def requested_search(options: Options) -> Search | None:
    """Return the search that these options request with the value "auto"."""
    search: Search | None = getattr(options, "searched", None)
    return search if search is not None and getattr(options, search.option) == AUTO else None


def joint_limits(threshold: str) -> tuple[float, float]:
    """Return the limits of DietCL's joint phase: updates' worth of passes, and share of the budget."""
    with suppress(ValueError):
        value = float(threshold.removesuffix("%"))
        if threshold.endswith("%") and 0 <= value <= 100:
            return math.inf, value / 100
        if not threshold.endswith("%") and value >= 0:
            return value, 1.0
    raise UserError(f"--threshold {threshold}: give a number of updates from 0, a share such as 80%, or {AUTO}")
