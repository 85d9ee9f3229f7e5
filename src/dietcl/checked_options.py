"""Options that declare their valid values beside their types; free of torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any

from dietcl.errors import UserError


@dataclass(frozen=True)
class Valid:
    """Metadata of an `Annotated` option: a test of its value, and advice for whoever gives one that fails it."""

    test: Callable[[Any], bool]
    advice: str


Weight = Annotated[float, Valid(lambda value: 0 <= value < math.inf, "give a weight from 0")]
Factor = Annotated[float, Valid(lambda value: 0 < value < math.inf, "give a factor above 0")]
FromZero = Annotated[float, Valid(lambda value: 0 <= value < math.inf, "give a number from 0")]
Positive = Annotated[float, Valid(lambda value: 0 < value < math.inf, "give a number above 0")]
Share = Annotated[float, Valid(lambda value: 0 <= value <= 1, "give a share from 0 to 1")]
Count = Annotated[int, Valid(lambda value: value >= 1, "give at least 1")]


@dataclass(frozen=True, kw_only=True)
class CheckedOptions:
    """Base class of options: raises at once if a value is not valid."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            for valid in getattr(field.type, "__metadata__", ()):
                if isinstance(valid, Valid) and not valid.test(value):
                    raise UserError(f"--{field.name.replace('_', '-')} {value}: {valid.advice}")
