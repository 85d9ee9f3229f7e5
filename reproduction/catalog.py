"""All suites by name: those of the paper, then those about Larder; and what of them a user asks for."""

from dataclasses import replace

from dietcl import UserError
from reproduction.datasets import AT
from reproduction.larder_suites import LARDER_SUITES
from reproduction.suites import SUITES, Suite

ALL_SUITES: dict[str, Suite] = {**SUITES, **LARDER_SUITES}


def suites_named(name: str, methods: str = "all", stream: str = "") -> dict[str, Suite]:
    """Return a suite by its name, or all that are for a stream, with the arms of some methods (names with commas)."""
    if name not in (*ALL_SUITES, "all"):
        raise UserError(f"{name}: no such suite; choose from {', '.join(ALL_SUITES)}, all, claims or summary")
    suites = ALL_SUITES if name == "all" else {name: ALL_SUITES[name]}
    suites = {name: suite for name, suite in suites.items() if _is_for(suite, stream)}
    if not suites:
        raise UserError(f"{name}: is for other streams; choose --stream {' or '.join(ALL_SUITES[name].streams)}")
    return suites if methods == "all" else _with_methods(suites, name, methods)


def _is_for(suite: Suite, stream: str) -> bool:
    """Tell whether a suite is for a stream, at whichever size; without one, it is."""
    return not (suite.streams and stream) or stream.partition(AT)[0] in suite.streams


def _with_methods(suites: dict[str, Suite], name: str, methods: str) -> dict[str, Suite]:
    known = list(dict.fromkeys(arm.method for suite in suites.values() for arm in suite.arms))
    wanted = [method.strip() for method in methods.split(",") if method.strip()]
    if not wanted:
        raise UserError(f"--methods: name some of {', '.join(known)}, or all")
    for method in wanted:
        if method not in known:
            raise UserError(f"--methods {method}: {name} has no such method; choose from {', '.join(known)}, or all")
    some = {
        name: replace(suite, arms=tuple(arm for arm in suite.arms if arm.method in wanted))
        for name, suite in suites.items()
    }
    return {name: suite for name, suite in some.items() if suite.arms}
