"""What a suite measured, as tables; every view has its columns, and the paper's numbers beside them."""

from collections.abc import Callable, Sequence

import numpy as np

from reproduction import paper
from reproduction.measures import (
    Measure,
    after,
    average,
    current,
    final,
    gaps,
    lost,
    new_classes,
    old,
    pooled,
    solved,
    unevenness,
)
from reproduction.show.figure_data import percent, spread_text
from reproduction.show.lead_tables import lead_sheets
from reproduction.show.scale import Scale
from reproduction.show.table_formats import Sheet
from reproduction.study import Measured
from reproduction.suites import THRESHOLD_STEPS, Suite

_PER = ("per new label", "per remembered label, in the end", "per arriving image")


def spread(entry: Measured, measure: Measure) -> str:
    """Write mean and standard deviation over seeds in percent."""
    return spread_text(percent(entry, measure))


def sheets_of(name: str, suite: Suite, measured: Sequence[Measured], scale: Scale) -> list[Sheet]:
    """Return the tables of a suite, the last of which says how often images were passed at each of its points."""
    return [*_VIEWS[suite.view](name, suite, measured, scale), _regimes(suite, measured, scale)]


def _regimes(suite: Suite, measured: Sequence[Measured], scale: Scale) -> Sheet:
    rows, names = [], {}
    for point in suite.points:
        names = scale.regime(next(entry for entry in measured if entry.point == point))
        pairs = zip(names.values(), paper.passes(point), strict=True)
        cells = (f"{_passes(ours)} ({_passes(theirs)})" for ours, theirs in pairs)
        rows.append((scale.describe(suite, point), *cells))
    title = (
        f"Passes of a time step (S updates of b = {scale.batch} images) for each label and image; in brackets those of "
        "the paper on ImageNet10k."
    )
    header = ("at", *(f"{name} ({what})" for name, what in zip(names, _PER, strict=True)))
    return Sheet(title, header, tuple(rows))


def _passes(number: float) -> str:
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"


def seeds_text(measured: Sequence[Measured]) -> str:
    """Say how many seeds there are, or which numbers of them."""
    *fewer, most = sorted({len(entry.results) for entry in measured})
    listed = f"{', '.join(map(str, fewer))} or {most}" if fewer else f"{most}"
    return f"{listed} seed{'' if most == 1 else 's'}"


def _table(name: str, suite: Suite, measured: Sequence[Measured], scale: Scale) -> list[Sheet]:
    columns = _paper_columns(name) | _larder_columns(measured)
    measures: dict[str, Measure] = {"current": current, "old": old}
    if any("ridge" in result.facts for entry in measured for result in entry.results):
        measures["solved head"] = solved
    rows = []
    for entry in measured:
        own = [spread(entry, final), _average(entry), *(spread(entry, measure) for measure in measures.values())]
        further = [write(entry) for write in columns.values()]
        rows.append((entry.arm.title, *own, str(len(entry.results)), *further))
    header = ("method", "A(T)", "A", *measures, "seeds", *columns)
    levels = Sheet(f"Percent, mean ± standard deviation over {seeds_text(measured)}.", header, tuple(rows))
    return [levels, *lead_sheets(suite, measured, {"A(T)": final, "A": average}, scale)]


_Column = Callable[[Measured], str]


def _paper_columns(name: str) -> dict[str, _Column]:
    """Return the paper's numbers beside those of a suite, if it has any."""

    def of_stream(place: int) -> _Column:
        return lambda entry: _pair(*paper.TABLE1.get(entry.arm.title, ((None, None),) * 3)[place])

    if name == "table1":
        return {f"paper, {stream}": of_stream(place) for place, stream in enumerate(paper.STREAMS)}
    theirs = paper.FINAL.get(name, {})
    return {"paper, A(T)": lambda entry: _pair(theirs.get(entry.arm.title), None)} if theirs else {}


def _larder_columns(measured: Sequence[Measured]) -> dict[str, _Column]:
    """Return what arms keep of images without a label, if some do, and what all keep from one time step to the next."""
    if not any(map(guesses_of, measured)):
        return {}
    return {"images kept": images_kept, "guesses right": guesses_right, "state, kB": state_size}


def guesses_of(entry: Measured) -> list[tuple[int, int, int]]:
    """Return how many guessed labels an arm has in the end, how many are right, and of how many that is known."""
    facts = [result.facts for result in entry.results if result.facts.get("guesses")]
    ends = [(*found["guesses"][-1], found.get("guesses_known", [None])[-1]) for found in facts]
    return [(kept, right, kept if known is None else known) for kept, right, known in ends]


def images_kept(entry: Measured) -> str:
    """Write how many images without a label an arm keeps in the end, if any."""
    kept = [kept for kept, *_ in guesses_of(entry)]
    return f"{np.mean(kept):,.0f}" if kept else ""


def guesses_right(entry: Measured) -> str:
    """Write how many percent of their guessed labels are right, where that is known."""
    found = guesses_of(entry)
    return spread_text([100 * right / known if known else np.nan for _, right, known in found]) if found else ""


def state_size(entry: Measured) -> str:
    """Write how many kB are kept from one time step to the next, where that was noted."""
    sizes = [result.facts["state_bytes"] for result in entry.results if "state_bytes" in result.facts]
    return f"{np.mean(sizes) / 1e3:,.0f}" if sizes else ""


def _average(entry: Measured) -> str:
    """Write A; the reference, which learns the stream at once, has none."""
    return "–" if entry.arm.group == "reference" else spread(entry, average)


def _pair(last: float | None, mean: float | None) -> str:
    return " / ".join(f"{value:.2f}" for value in (last, mean) if value is not None)


def _lines(name: str, suite: Suite, measured: Sequence[Measured], scale: Scale) -> list[Sheet]:
    """Return A(T) and A by point, and where the paper tells them, the paper's below."""
    sheets = []
    for heading, measure in (("A(T)", final), ("A", average)):
        rows = []
        for arm in suite.arms:
            rows.append((arm.title, *(spread(entry, measure) for entry in measured if entry.arm == arm)))
            theirs = [paper.at(name, arm.title, point, heading) for point in suite.points]
            if any(theirs):
                rows.append((f"{arm.title} in the paper", *(f"{value:g}" if value else "" for value in theirs)))
        header = (heading, *(scale.describe(suite, point) for point in suite.points))
        title = f"{heading}: percent, mean ± standard deviation over {seeds_text(measured)}."
        sheets.append(Sheet(title, header, tuple(rows)))
    return [*sheets, *lead_sheets(suite, measured, {"A(T)": final, "A": average}, scale)]


def _curves(name: str, suite: Suite, measured: Sequence[Measured], scale: Scale) -> list[Sheet]:
    last = len(measured[0].results[0].along)
    times = sorted({t for t in (1, 2, 3, 5, 10, 15, last) if t <= last})
    rows = tuple((entry.arm.title, *(spread(entry, after(t)) for t in times)) for entry in measured)
    title = f"Accuracy after time steps: percent, mean ± standard deviation over {seeds_text(measured)}."
    return [Sheet(title, ("method", *(f"t = {t}" for t in times)), rows)]


def _steps(name: str, suite: Suite, measured: Sequence[Measured], scale: Scale) -> list[Sheet]:
    rows = []
    for place, t in enumerate(THRESHOLD_STEPS):
        rows.append((f"A({t})", *(spread(entry, after(t)) for entry in measured)))
        theirs = [paper.THRESHOLDS.get(entry.point.threshold) for entry in measured]
        rows.append((f"A({t}) in the paper", *(f"{values[place]:.2f}" if values else "" for values in theirs)))
    header = ("after time step", *(scale.describe(suite, entry.point) for entry in measured))
    return [Sheet(f"Percent, mean ± standard deviation over {seeds_text(measured)}.", header, tuple(rows))]


def _of_arms(columns: dict[str, Measure]) -> "_View":
    def view(name: str, suite: Suite, measured: Sequence[Measured], scale: Scale) -> list[Sheet]:
        rows = tuple((entry.arm.title, *(spread(entry, measure) for measure in columns.values())) for entry in measured)
        title = f"Percent, mean ± standard deviation over {seeds_text(measured)}."
        return [Sheet(title, ("method", *columns), rows)]

    return view


def _gap(name: str, suite: Suite, measured: Sequence[Measured], scale: Scale) -> list[Sheet]:
    columns: dict[str, Measure] = {"lost for good": lost, "A(3)": final, "current": current, "old": old}
    (sheet,) = _of_arms(columns)(name, suite, measured, scale)
    gap = [spread_text(100 * np.array(gaps(entry.results))) for entry in measured]
    rows = tuple((title, own, *cells) for own, (title, *cells) in zip(gap, sheet.rows, strict=True))
    return [Sheet(sheet.title, ("method", "stability gap", *columns), rows)]


def flops_by_purpose(entry: Measured) -> dict[str, float]:
    """Return what was spent on each purpose, mean over seeds, the dearest first."""
    flops: dict[str, float] = {}
    for result in entry.results:
        for purpose, spent in result.facts.get("flops", {}).items():
            flops[purpose] = flops.get(purpose, 0.0) + spent / len(entry.results)
    return dict(sorted(((purpose, spent) for purpose, spent in flops.items() if spent), key=lambda item: -item[1]))


def _spending(name: str, suite: Suite, measured: Sequence[Measured], scale: Scale) -> list[Sheet]:
    rows = []
    for entry in measured:
        flops = flops_by_purpose(entry)
        total = sum(flops.values())
        shares = (f"{purpose} {100 * spent / total:.0f} %" for purpose, spent in flops.items() if spent >= total / 100)
        updates = np.mean([result.facts["updates"] for result in entry.results])
        rows.append(
            (
                entry.arm.title,
                scale.describe(suite, entry.point),
                f"{total / 1e12:.3g}",
                f"{updates:,.0f}",
                spread(entry, final),
                _average(entry),
                ", ".join(shares),
            )
        )
    header = ("method", "budget", "TFLOPs", "updates", "A(T)", "A", "spent on (from 1 %)")
    spent = Sheet(f"Of the whole stream; accuracy in percent, {seeds_text(measured)}.", header, tuple(rows))
    at_equal_flops = [entry for entry in measured if entry.point.accounting == "flops"]
    return [spent, *lead_sheets(suite, at_equal_flops, {"A(T)": final, "A": average}, scale)]


def _heads(name: str, suite: Suite, measured: Sequence[Measured], scale: Scale) -> list[Sheet]:
    measures: dict[str, Measure] = {"own head (pooled)": pooled, "solved head": solved}
    return [*_of_arms(measures)(name, suite, measured, scale), *lead_sheets(suite, measured, measures, scale)]


_View = Callable[[str, Suite, Sequence[Measured], Scale], list[Sheet]]
_VIEWS: dict[str, _View] = {
    "table": _table,
    "curves": _curves,
    "lines": _lines,
    "panels": _lines,
    "steps": _steps,
    "gap": _gap,
    "stages": _of_arms({"new classes": new_classes, "all seen classes (A)": average, "A(T)": final}),
    "origins": _of_arms({"A(T)": final, "deviation over origins": unevenness, "current": current, "old": old}),
    "spending": _spending,
    "heads": _heads,
}
