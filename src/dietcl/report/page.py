"""The report of some runs as one HTML page."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import fmean

from dietcl.files import make_folder
from dietcl.plural import plural
from dietcl.report.comparison import comparison
from dietcl.report.document import document, figure_element, folded, table_element
from dietcl.report.evaluation import CLASS_SENTENCE, MODEL_SENTENCE, score_sentence, with_warning
from dietcl.report.figures import Figure, write_figures
from dietcl.report.groups import Group, entries_of, group_runs
from dietcl.report.panels import run_sections
from dietcl.report.runs import RunRecord, read_runs
from dietcl.report.series import chance_line, first_date, is_point, page_data, shared_dates
from dietcl.report.style import FEW

_FIGURES = "figures"
_TITLES = {  # of the sections, and their links in the navigation
    "comparison": ("Comparison", "Comparison"),
    "accuracy": ("Accuracy", "Accuracy along the stream"),
    "classes": ("Classes", "Accuracy by class"),
    "matrix": ("Matrix", "What is kept of each time step"),
    "budget": ("Budget", "Where the budget went"),
    "losses": ("Losses", "Training losses"),
    "within": ("Within time steps", "Within time steps"),
    "samples": ("Predictions", "Predictions"),
    "reconstructions": ("Reconstructions", "Reconstructions"),
    "model": ("Model", "Use the model"),
    "settings": ("Settings", "Settings"),
}
_EXPLANATIONS = {
    "accuracy": "After each time step the model is tested on the images of every time step so far; a falling line "
    "means that there is more and more to know, or that what was known is being forgotten.",
    "classes": CLASS_SENTENCE,
    "matrix": "Each row is the model after one more time step, each column the test images of one time step: the "
    "diagonal was just learned, right of it is yet to be learned, and a column that fades is being forgotten.",
    "budget": "Each bar is the budget of one time step, coloured by what it was spent on; the hatched part is unused.",
    "losses": "Each line is one term of the training loss, averaged over short stretches of updates; it jumps where "
    "new data arrives and falls while that is learned.",
    "within": "Accuracy while a time step is being learned, one line per time step that the test images come from; a "
    "dip right after new data arrives that later recovers is called the stability gap.",
    "samples": "Test images with the model's final answer: green is right, red is wrong (below the true label).",
    "reconstructions": "From a few patches the model draws the full image, so it can learn without labels.",
    "model": MODEL_SENTENCE,
}


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write report.html and the PNG figures of some run folders into a folder, and return the page's path."""
    groups = group_runs(read_runs(runs))
    entries = entries_of(groups)
    figures = write_figures(groups, make_folder(make_folder(out) / _FIGURES))
    bodies = {"comparison": "".join(comparison(entries)), "accuracy": "".join(_accuracy_section(groups, figures))}
    bodies |= run_sections(entries, figures, out)
    sections = [(key, *_TITLES[key], _EXPLANATIONS.get(key, ""), body) for key, body in bodies.items()]
    texts = {"heading": _heading(groups), "verdict": _verdict(groups), "lede": _lede(groups)}
    lines = document(**texts, sections=sections, charts=page_data(groups))
    page = out / "report.html"
    page.write_text("\n".join(lines), encoding="utf-8")
    return page


def accuracy_picture(out: Path) -> Path:
    """Return where write_report puts the picture of accuracy along the stream."""
    return out / _FIGURES / "accuracy_mean.png"


def _heading(groups: Sequence[Group]) -> str:
    names = list(dict.fromkeys(group.runs[0].method for group in groups))
    streams = " and ".join(dict.fromkeys(group.runs[0].stream for group in groups))
    if len(names) > 4:
        return f"{len(names)} methods on {streams}"
    return f"{', '.join(names[:-1])} and {names[-1]} on {streams}" if len(names) > 1 else f"{names[0]} on {streams}"


def _verdict(groups: Sequence[Group]) -> str:
    """Return one sentence about the best runs; none if they are not of one stream, or nothing was tested."""
    tested = [group for group in groups if any(run.summary.learned for run in group.runs)]
    if not tested or len({group.runs[0].stream for group in groups}) > 1:
        return ""
    ranked = sorted(tested, key=lambda group: -_accuracy(group))
    best, run = ranked[0], ranked[0].runs[0]
    steps = plural(run.summary.learned, "time step")
    score = score_sentence(_accuracy(best), run.summary.test_images, _class_count(run))
    what = "methods" if len({group.runs[0].method for group in ranked}) == len(ranked) else "configurations"
    sentence = f"Of {len(ranked)} {what}, {best.label} does best: after {steps} it classifies {score}"
    if len(ranked) == 1:
        sentence = f"After {steps} {best.label} classifies {score}"
    forgotten = fmean(run.summary.forgetting for run in best.runs)
    if forgotten >= 0.0005:
        sentence += f"; it forgot {100 * forgotten:.1f} points of its best accuracy on earlier time steps"
    elif not math.isnan(forgotten):
        sentence += "; it forgot nothing of earlier time steps"
    if len(ranked) > 1:
        second = ranked[1]
        gap = _accuracy(best) - _accuracy(second)
        is_close = gap < math.hypot(run.summary.final_pooled_se, second.runs[0].summary.final_pooled_se)
        sentence += f". {second.label} follows with {100 * _accuracy(second):.1f} %"
        sentence += ", which is not a clear difference" if is_close else ""
    return with_warning(sentence, run.summary.test_images)


def _class_count(run: RunRecord) -> int | None:
    """Return among how many classes the model chooses at the end, if that is known."""
    counts = [event["classes"] for event in run.of("step_begin") if "classes" in event]
    return run.class_counts.answers if run.class_counts else counts[-1] if counts else None


def _accuracy(group: Group) -> float:
    return fmean(run.accuracy for run in group.runs)


def _lede(groups: Sequence[Group]) -> str:
    runs = [entry.run for entry in entries_of(groups)]
    budgets = " or ".join(dict.fromkeys(run.budget for run in runs))
    steps = " or ".join(str(n) for n in sorted({run.due for run in runs} - {0}))
    rates = sorted(rate for run in runs if (rate := run.realized_rate) is not None)
    span = " to ".join(dict.fromkeys(f"{float(f'{100 * rate:.2g}'):g}" for rate in rates[:1] + rates[-1:]))
    labeled = f" {span} % of the arriving images have a label." if rates else ""
    noun = "time step" if steps == "1" else "time steps"
    return f"{plural(len(runs), 'run')} over {steps or 'no'} {noun}, each of which may spend {budgets}.{labeled}"


def _accuracy_section(groups: Sequence[Group], figures: Sequence[Figure]) -> Iterator[str]:
    entries = entries_of(groups)
    if not any(entry.run.summary.learned for entry in entries):
        finished = any(entry.run.finished for entry in entries)
        why = "there were no test images" if finished else "no run has finished its first time step"
        yield f'<p class="absent">No accuracy was measured: {why}.</p>'
        return
    yield '<div class="card panel"><div id="tools" class="tools"></div><div class="chart" data-kind="accuracy"></div>'
    pictures = "".join(figure_element(figure.path, figure.alt) for figure in figures if figure.run < 0)
    yield f"<noscript>{pictures}</noscript>"
    yield f'<p class="small">{_reading(groups)}</p></div>'
    steps = max(entry.run.summary.time_steps for entry in entries)
    dates = shared_dates([entry.run for entry in entries])
    heads = [f"<th>{t}</th>" for t in range(1, steps + 1)]
    if dates:
        heads = [f'<th title="{date}">{first_date(date, "<br>")}</th>' for date in dates]
    head = f"<th>{'By first date' if dates else 'Time steps learned'}</th>{''.join(heads)}"
    rows = ""
    for entry in entries:
        cells = (f"<td>{'–' if math.isnan(v) else f'{100 * v:.1f}'}</td>" for v in entry.run.summary.accuracy_mean)
        rows += f'<tr><th scope="row">{escape(entry.label)}</th>{"".join(cells)}</tr>'
    numbers = table_element("Accuracy by time step", head, rows, style="numbers")
    yield folded("The numbers (mean over time steps, in percent)", numbers)


def _reading(groups: Sequence[Group]) -> str:
    """Return how to read the lines of the accuracy chart."""
    runs = [run for group in groups for run in group.runs]
    several = len(runs) > len(groups)
    if len(groups) <= FEW and several:
        text = "Thin lines are seeds and the bold one is their mean; shaded is one standard deviation."
    elif len(groups) <= FEW:
        text = "Shaded is one standard error, as the test images are a sample."
    else:
        spread = "standard deviation" if several else "standard error"
        text = "Each line is the mean over seeds. " if several else ""
        text += f"One {spread} is shaded only where at most {FEW} lines share a chart; the table above has it."
        raised = "raises its line and shows its seeds" if several else "raises its line"
        text += f' <span class="live">Pointing at an entry of the legend {raised}; a click hides it.</span>'
    if any(chance_line(runs)):
        text += " The gray dotted line is chance: guessing among the classes seen so far."
    if any(map(is_point, runs)):
        text += " A diamond was tested only once, after the last time step."
    return text
