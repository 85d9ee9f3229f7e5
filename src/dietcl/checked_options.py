"""Options that declare their valid values beside their types; free of torch."""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from dietcl.errors import UserError


@dataclass(frozen=True)
class Valid:
    """Metadata of an `Annotated` option: a test of its value, and advice for whoever gives one that fails it."""

    test: Callable[[Any], bool]
    advice: str


@dataclass(frozen=True)
class Later:
    """Metadata of an option that is left out of files and hashes at its default, as they were before it existed."""


@dataclass(frozen=True)
class FormerName:
    """Metadata of an option that files and hashes know by another name."""

    name: str


Mark = TypeVar("Mark", Later, FormerName)
Weight = Annotated[float, Valid(lambda value: 0 <= value < math.inf, "give a weight from 0")]
Factor = Annotated[float, Valid(lambda value: 0 < value < math.inf, "give a factor above 0")]
FromZero = Annotated[float, Valid(lambda value: 0 <= value < math.inf, "give a number from 0")]
Positive = Annotated[float, Valid(lambda value: 0 < value < math.inf, "give a number above 0")]
Share = Annotated[float, Valid(lambda value: 0 <= value <= 1, "give a share from 0 to 1")]
Count = Annotated[int, Valid(lambda value: value >= 1, "give at least 1")]
Limit = Annotated[int | None, Valid(lambda n: n is None or n >= 1, "give at least 1, or leave it out for all")]
_TYPES: dict[Any, tuple[tuple[type, ...], str]] = {  # what fits an annotation, and its name in advice
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "True or False"),
    str: ((str,), "a string"),
    NoneType: ((NoneType,), "None"),
}


@dataclass(frozen=True, kw_only=True)
class CheckedOptions:
    """Base class of options: raises at once if a value is not valid."""

    def __post_init__(self) -> None:
        check_options(type(self), vars(self))


def later_options(kind: type) -> set[str]:
    """Return the names of a dataclass's options that came `Later`."""
    return {option.name for option in fields(kind) if _marks(option, Later)}


def plain_values(options: Any) -> dict[str, Any]:
    """Return the options of a dataclass, and of those in it, as files and hashes know them."""
    found = {}
    for option in fields(options):
        value = getattr(options, option.name)
        if not (_marks(option, Later) and value == option.default):
            found[_plain_name(option)] = plain_values(value) if is_dataclass(value) else value
    return found


def with_plain_values(options: Any, values: Mapping[str, Any]) -> Any:
    """Return options of a dataclass with values by their present or former names."""
    names = {_plain_name(option): option.name for option in fields(options)}
    return replace(options, **{names.get(name, name): value for name, value in values.items()})


def _plain_name(option: Field[Any]) -> str:
    return next((mark.name for mark in _marks(option, FormerName)), option.name)


def _marks(option: Field[Any], kind: type[Mark]) -> list[Mark]:
    return [mark for mark in getattr(option.type, "__metadata__", ()) if isinstance(mark, kind)]


def check_options(kind: type, given: Mapping[str, Any]) -> None:
    """Refuse options that a dataclass does not have, and values that do not fit its annotations."""
    known = {field.name: field.type for field in fields(kind)}
    for name, value in given.items():
        if name not in known:
            raise unknown_option(name, known, f"choose from {', '.join(known) or 'none'}")
        check_value(name, known[name], value)


def check_value(name: str, annotation: Any, value: Any) -> None:
    """Refuse a value that does not fit the annotation of an option."""
    checks = [valid for valid in getattr(annotation, "__metadata__", ()) if isinstance(valid, Valid)]
    flag = f"--{name.replace('_', '-')}"
    if not _fits(annotation, value):
        *words, last = _choices(annotation)
        advice = f"give {', '.join(words)}{' or ' * bool(words)}{last}"
        raise UserError(f"{flag} {value!r}: {checks[0].advice if checks else advice}")
    for valid in checks:
        if not valid.test(value):
            raise UserError(f"{flag} {value}: {valid.advice}")


def unknown_option(option: str, known: Iterable[str], otherwise: str) -> UserError:
    """Return an error that names the nearest known option, or says something else if none is near."""
    near = difflib.get_close_matches(option, known, n=1)
    return UserError(f"{option}: there is no such option; {f'did you mean {near[0]}?' if near else otherwise}")


def _fits(annotation: Any, value: Any) -> bool:
    """Tell whether a value is of a type; one that is neither plain nor a choice is left to whoever uses the value."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _fits(parts[0], value)
    if origin in (Union, UnionType):
        return any(_fits(part, value) for part in parts)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in parts)
    types, _ = _TYPES.get(annotation, ((object,), ""))
    return isinstance(value, types) and (bool in types or object in types or not isinstance(value, bool))


def _choices(annotation: Any) -> list[str]:
    """Return in words what an option of this type may be."""
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    if annotation in _TYPES:
        return [_TYPES[annotation][1]]
    return [word for part in get_args(annotation) for word in _choices(part)]
