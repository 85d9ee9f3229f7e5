"""The registry of methods: what it knows without torch, and methods that are registered from outside."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import pytest

from dietcl.errors import UserError
from dietcl.methods import METHODS, describe, every_method, method_class, method_config, method_entry, register_method
from dietcl.methods.base import Method
from dietcl.methods.er import ER
from helpers.recording import run_through
from helpers.tiny import tiny_config, tiny_learner


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Forget what a test registered."""
    known = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(known)


def mine(**attributes: object) -> type[Method]:
    """Return a new class of always the same name, as a cell of a notebook makes when it is run again."""
    return type("Mine", (ER,), {"__doc__": "First line.\n\nMore.", "__module__": "notebook", **attributes})


@pytest.mark.parametrize("name", METHODS)
def test_the_table_agrees_with_the_classes(name):
    entry, found = METHODS[name], method_class(name)
    assert entry.name == name
    assert issubclass(found, Method)
    assert entry.options is found.Config or name == "one_stage"
    assert {type(options) for options in entry.variants.values()} <= {entry.options}
    assert entry.description
    assert entry.keeps
    assert entry.cost


def test_every_function_knows_a_registered_method(blobs):
    @register_method("mine")
    class Mine(ER):
        """Replays what is mine.

        And more.
        """

        keeps, cost = "nothing", "1"

        @dataclass(frozen=True, kw_only=True)
        class Config(ER.Config):
            sampling: str = "uniform"

        variants = {"half": Config(sampling="balanced")}  # noqa: RUF012

    assert method_class("mine") is Mine
    assert asdict(method_config("mine")) == asdict(ER.Config(sampling="uniform"))
    assert method_config("mine:half").sampling == "balanced"
    assert every_method()[-2:] == ["mine", "mine:half"]
    entry = describe()[-1]
    assert (entry.name, entry.description, entry.keeps, entry.cost) == ("mine", "Replays what is mine.", "nothing", "1")
    own, er = (run_through(tiny_learner(tiny_config(blobs, name, sampling="uniform"))) for name in ("mine", "er"))
    assert own.counts.correct.tolist() == er.counts.correct.tolist()


def test_a_class_without_options_has_none():
    class Plain(Method):
        next_phase = losses = None

    register_method("plain")(Plain)
    assert asdict(method_config("plain")) == {}
    assert method_entry("plain").description == ""


def test_the_same_class_again_replaces_it_and_another_is_refused():
    register_method("mine")(mine())
    again = mine()
    register_method("mine")(again)
    assert method_class("mine") is again
    with pytest.raises(UserError, match=r"register_method\('mine'\): notebook:Mine has this name; choose another"):
        register_method("mine")(mine(__qualname__="Other"))
    with pytest.raises(UserError, match=r"register_method\('er'\): dietcl.methods.er:ER has this name"):
        register_method("er")(again)
    assert method_class("er") is ER


@dataclass(frozen=True, kw_only=True)
class NeedsValue:
    value: float


@pytest.mark.parametrize(
    ("name", "attributes", "words"),
    [
        ("my:er", {}, "letters, digits and underscores"),
        ("mine", {"Config": object}, "Mine.Config is not a dataclass"),
        ("mine", {"Config": NeedsValue}, "give every option of Config a default .*value"),
    ],
)
def test_what_cannot_be_registered_is_refused_in_a_sentence(name, attributes, words):
    with pytest.raises(UserError, match=words):
        register_method(name)(mine(**attributes))
    assert name not in METHODS


@pytest.mark.parametrize("found", [int, Method])
def test_a_class_that_cannot_learn_is_refused(found):
    with pytest.raises(UserError, match=f"{found.__name__} is not a Method with next_phase and losses"):
        register_method("mine")(found)
