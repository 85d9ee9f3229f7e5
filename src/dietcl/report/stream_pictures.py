"""Pictures of a stream before anything is learned: a contact sheet, the label rate, and the classes that arrive."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from PIL import Image

from dietcl.plural import plural
from dietcl.report.figure_style import figure_style, shorten, show_time_steps, whole_numbers
from dietcl.report.series import evenly
from dietcl.report.style import PALETTE, QUIET, WRONG
from dietcl.streams.decode import Pixels, Unreadable
from dietcl.streams.image_reader import ImageReader
from dietcl.streams.index import Index
from dietcl.streams.stream import Stream, TimeStep

_MOST_COLUMNS = 20
_TILE = 128  # pixels
_PITCH = 0.95  # inches from one tile to the next
_WIDE = 0.9  # of a tile, where the next one begins at 1
_HEAD, _FOOT, _MARGIN = 0.95, 0.45, 0.15  # inches
_TEXT, _PALE = "#374151", "#D1D5DB"
_FRAME: Any = {"fill": False, "edgecolor": PALETTE[1], "lw": 2.2}  # of an image whose label is revealed


@dataclass(frozen=True)
class _Arrivals:
    """Which classes arrive when, by the labels of the manifest; a class is its code there."""

    order: tuple[int, ...]  # classes in the order of their first training image
    new: tuple[tuple[int, ...], ...]  # of each time step
    present: tuple[frozenset[int], ...]  # of each time step
    has_unlabeled: tuple[bool, ...]  # whether a time step has images without a label in the manifest


def draw_stream(
    stream: Stream, index: Index, label_rate: float, folder: Path, per_cell: int = 1, classes: int = 12
) -> list[Path]:
    """Write contact.png, label-rate.png and classes.png into a folder."""
    arrivals = _find_arrivals(stream, index)
    with figure_style():
        figures = {
            folder / "contact.png": _contact_sheet(stream, index, arrivals, per_cell, classes),
            folder / "label-rate.png": _label_rate(stream, label_rate),
            folder / "classes.png": _classes(stream, arrivals),
        }
        for path, figure in figures.items():
            figure.savefig(path)
    return list(figures)


def _label_rate(stream: Stream, asked: float) -> Any:
    labeled = np.array([len(step.labeled) for step in stream.steps])
    images = labeled + np.array([len(step.unlabeled) for step in stream.steps])
    rate = np.where(images > 0, 100 * labeled / np.maximum(1, images), np.nan)
    figure, t, above, below = _panels(stream, "labels revealed")
    above.plot(t, rate, color=PALETTE[0], lw=2, **_marker(t), label="realized")
    above.axhline(100 * asked, color=PALETTE[1], lw=1.4, ls=(0, (3.6, 1.5)), label=f"asked for: {100 * asked:.4g} %")
    above.set_ylabel("Label rate (%)")
    above.set_ylim(0, 1.15 * max(100 * asked, float(np.nanmax(rate, initial=0.0))) or 1)
    _bars(below, t, {PALETTE[0]: labeled}, "Labeled images")
    above.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    return figure


def _classes(stream: Stream, arrivals: _Arrivals) -> Any:
    arrived = np.array([len(new) for new in arrivals.new])
    revealed = np.array([len(step.new_classes) for step in stream.steps])
    figure, t, above, below = _panels(stream, "classes along the stream")
    images = "with an image (labels as in the manifest)"
    above.plot(t, np.cumsum(arrived), color=PALETTE[5], lw=3.4, **_marker(t), label=images)
    above.plot(t, np.cumsum(revealed), color=PALETTE[0], lw=1.6, **_marker(t), label="with a revealed label")
    above.set_ylabel("Classes so far")
    above.set_ylim(0, 1.1 * max(1, len(arrivals.order)))
    _bars(below, t, {PALETTE[5]: arrived, PALETTE[0]: revealed}, "New classes")
    above.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    return figure


def _panels(stream: Stream, title: str) -> tuple[Any, npt.NDArray[Any], Any, Any]:
    """Return a figure, the numbers of the time steps, and two axes over them, one above the other."""
    figure = Figure(figsize=(8.0, 5.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    figure.suptitle(f"{shorten(stream.name, 60)}: {title}", x=0.015, ha="left", fontsize=11, fontweight="bold")
    above.xaxis.set_major_locator(whole_numbers())
    t = np.array([step.t for step in stream.steps])
    show_time_steps(above, t)
    below.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    below.grid(visible=False, axis="x")
    return figure, t, above, below


def _marker(t: npt.NDArray[Any]) -> dict[str, Any]:
    return {"marker": "o" if len(t) <= 60 else None, "ms": 4}


def _bars(axes: Any, t: npt.NDArray[Any], series: dict[str, npt.NDArray[Any]], title: str) -> None:
    """Draw values by colour beside each other, with the largest of a time step above its bars where there is room."""
    width = 0.82 if len(t) <= 200 else 1.0  # gaps between hundreds of bars would be all that is seen
    for i, (color, values) in enumerate(series.items()):
        axes.bar(t + width * ((i + 0.5) / len(series) - 0.5), values, width / len(series), color=color)
    axes.set(ylabel=title, xlabel="Time step")
    highest = np.max([*series.values()], axis=0)
    axes.set_ylim(0, 1.18 * max(1, int(highest.max(initial=0))))
    if len(t) <= 25:
        for x, value in zip(t.tolist(), highest.tolist(), strict=True):
            axes.text(x, value, f"{value:,}", fontsize=7.5, color=QUIET, ha="center", va="bottom")


def _find_arrivals(stream: Stream, index: Index) -> _Arrivals:
    """Look up the classes of all training images, hidden labels included."""
    seen: set[int] = set()
    order, new, present, has_unlabeled = [], [], [], []
    for step in stream.steps:
        codes, numbers = np.unique(index.label[_training_rows(stream, step)], return_counts=True)
        counts = dict(zip(codes.tolist(), numbers.tolist(), strict=True))
        has_unlabeled.append(counts.pop(-1, 0) > 0)
        # The most frequent first: with many classes in a time step, these are what it is about.
        fresh = sorted(counts.keys() - seen, key=lambda code: (-counts[code], code))
        seen |= counts.keys()
        order += fresh
        new.append(tuple(fresh))
        present.append(frozenset(counts))
    return _Arrivals(tuple(order), tuple(new), tuple(present), tuple(has_unlabeled))


def _contact_sheet(stream: Stream, index: Index, arrivals: _Arrivals, per_cell: int, classes: int) -> Any:
    """Draw images of the first classes by time step, or of each time step's new classes where classes come and go."""
    steps = evenly(len(stream.steps), _MOST_COLUMNS)
    first = arrivals.order[:classes]
    filled = sum(code in arrivals.present[t] for code in first for t in steps)
    fresh = sum(bool(arrivals.new[t]) for t in steps)
    times = Counter(code for codes in arrivals.present for code in codes)
    once = sum(count == 1 for count in times.values())
    # Where classes come and go, a table of classes by time steps would be nearly empty.
    is_sparse = filled < 0.25 * len(first) * len(steps) or once >= 0.75 * len(times)
    board = _Board(stream, index, steps, per_cell)
    draw = _by_step if is_sparse and 2 * fresh >= len(steps) > 1 else _by_class
    return draw(board, arrivals, classes)


def _training_rows(stream: Stream, step: TimeStep) -> npt.NDArray[np.uint32]:
    """Return the manifest rows of a time step's training images, those with a revealed label first."""
    return np.asarray(stream.index_row[np.concatenate([step.labeled, step.unlabeled])])


def _by_class(board: "_Board", arrivals: _Arrivals, classes: int) -> Any:
    """Draw a row for each class and a column for each time step."""
    first, count = arrivals.order[:classes], len(arrivals.order)
    wanted = (*first, -1) if any(arrivals.has_unlabeled[t] for t in board.steps) else first
    names = [shorten(board.index.classes[code], 18) if code >= 0 else "(no label)" for code in wanted]
    board.open(max(1, len(wanted)), gap=0.1, left=0.08 * max(map(len, names), default=1) + 0.2)
    for column in range(len(board.steps)):
        for row, is_empty in enumerate(board.put(column, wanted)):
            if is_empty:
                board.axes.plot(column + _WIDE / 2, board.height(row, 0.5), ".", color=_PALE, ms=3)
    for row, name in enumerate(names):
        board.axes.text(-0.1, board.height(row, 0.5), name, fontsize=9, color=_TEXT, ha="right", va="center")
    part = f"the first {len(first)} of {count:,} classes to arrive"
    return board.finish(part if len(first) < count else f"all {plural(count, 'class')}")


def _by_step(board: "_Board", arrivals: _Arrivals, classes: int) -> Any:
    """Draw a column for each time step with the classes that it is the first to have."""
    most = max(len(arrivals.new[t]) for t in board.steps)
    rows = min(classes, most)
    board.open(rows, gap=0.3, bottom=0.25 if most > rows else 0.0)
    style: Any = {"fontsize": 7, "ha": "center", "va": "top"}
    for column, t in enumerate(board.steps):
        middle, codes = column + _WIDE / 2, arrivals.new[t][:rows]
        board.put(column, codes)
        for row, code in enumerate(codes):
            name = shorten(board.index.classes[code], 14)
            board.axes.text(middle, board.height(row, 1) + 0.04, name, color=_TEXT, **style)
        if more := len(arrivals.new[t]) - len(codes):
            board.axes.text(middle, board.height(rows - 1, 1) + 0.32, f"+ {more:,} more", color=QUIET, **style)
    return board.finish("in each column the classes whose first images arrive at that time step")


class _Board:
    """Axes in which a tile is 0.9 wide and the next one begins 1 further to the right, one column per time step."""

    def __init__(self, stream: Stream, index: Index, steps: Sequence[int], per_cell: int) -> None:
        self.stream, self.index, self.steps, self._per_cell = stream, index, steps, per_cell
        self._images = ImageReader(index)
        self._unreadable = 0

    def open(self, rows: int, gap: float, left: float = 0.0, bottom: float = 0.0) -> None:
        """Make room for rows with a gap between them, and for words at the left and at the bottom."""
        self._grid = int(np.ceil(np.sqrt(self._per_cell)))
        self._cell = _WIDE * -(-self._per_cell // self._grid) / self._grid
        self._row = self._cell + gap
        columns = len(self.steps)
        pitch = _PITCH * min(2.0, self._grid**0.5)
        least = max(0.0, 6.4 - (columns * pitch + left)) / pitch  # titles want some width
        inner = ((columns + left / pitch + least) * pitch, (rows * self._row + bottom) * pitch)
        self._width, self._height = inner[0] + 2 * _MARGIN, inner[1] + _HEAD + _FOOT
        self.figure = Figure(figsize=(self._width, self._height))
        corner = (_MARGIN / self._width, _FOOT / self._height)
        self.axes = self.figure.add_axes((*corner, inner[0] / self._width, inner[1] / self._height))
        self.axes.set(xlim=(-left / pitch, columns + least), ylim=(rows * self._row + bottom, 0))
        self.axes.axis("off")

    def height(self, row: int, share: float) -> float:
        """Return a height within the tiles of a row: share 0 is their top, 1 their bottom."""
        return self._row * row + self._cell * share

    def put(self, column: int, classes: Sequence[int]) -> list[bool]:
        """Draw images of each class of a column, one below the other, and return which have none."""
        step = self.stream.steps[self.steps[column]]
        rows = _training_rows(self.stream, step)
        codes = self.index.label[rows]
        # Opaque row numbers are in random order already.
        chosen = [np.flatnonzero(codes == code)[: self._per_cell].tolist() for code in classes]
        for row, places in enumerate(chosen):
            for place, i in enumerate(places):
                down, right = divmod(place, self._grid)
                corner = (column + right * _WIDE / self._grid, self._row * row + down * _WIDE / self._grid)
                self._tile(int(rows[i]), corner, is_labeled=i < len(step.labeled))
        return [not places for places in chosen]

    def _tile(self, number: int, corner: tuple[float, float], is_labeled: bool) -> None:
        """Draw an image; a revealed label makes a frame, and an image that cannot be read a cross."""
        (x, y), width = corner, _WIDE / self._grid * (1 if self._grid == 1 else 0.94)
        limits = self.axes.axis()
        try:
            tile = _thumbnail(self._images.pixels(number, _TILE))
            self.axes.imshow(tile, extent=(x, x + width, y + width, y), aspect="auto", interpolation="antialiased")
        except Unreadable:
            self._unreadable += 1
            self.axes.add_patch(Rectangle(corner, width, width, facecolor="#F3F4F6", edgecolor="none"))
            for ends in ([y, y + width], [y + width, y]):
                self.axes.plot([x, x + width], ends, color=WRONG, lw=1.2, solid_capstyle="butt")
        self.axes.axis(limits)
        frame = _FRAME if is_labeled else {"fill": False, "edgecolor": _PALE, "lw": 0.8}
        self.axes.add_patch(Rectangle(corner, width, width, clip_on=False, zorder=3, **frame))

    def finish(self, shown: str) -> Any:
        """Write what stands above and below the tiles."""
        above: Any = {"fontsize": 9, "color": _TEXT, "ha": "center", "va": "bottom", "clip_on": False}
        for column, t in enumerate(self.steps):
            self.axes.text(column + _WIDE / 2, -0.06, f"t = {self.stream.steps[t].t}", **above)
        if len(self.steps) < len(self.stream.steps):
            shown += f"; {len(self.steps)} of {len(self.stream.steps):,} time steps, evenly spaced"
        title = f"{shorten(self.stream.name, 60)}: training images by time step"
        left, middle = _MARGIN / self._width, 0.2 / self._height
        self.figure.text(left, 1 - 0.12 / self._height, title, fontsize=12, fontweight="bold", va="top")
        self.figure.text(left, 1 - 0.36 / self._height, shown, fontsize=9, color=QUIET, va="top")
        width, height = 0.13 / self._width, 0.13 / self._height
        key = Rectangle((left, middle - height / 2), width, height, transform=self.figure.transFigure, **_FRAME)
        self.figure.add_artist(key)
        words = (
            "the label is revealed (such an image is shown where there is one); "
            "labels as in the manifest, those that stay hidden included"
        )
        if self._unreadable:
            words += f"; crossed out: {plural(self._unreadable, 'image')} that cannot be read"
        lines = textwrap.fill(words, max(40, int(self._width * 13)))
        self.figure.text(left + 0.22 / self._width, middle, lines, fontsize=8.5, color=QUIET, va="center")
        return self.figure


def _thumbnail(pixels: Pixels) -> Pixels:
    """Return the square in the middle of an image at the size of a tile; small images keep their pixels sharp."""
    height, width = pixels.shape[:2]
    edge = min(height, width)
    top, left = (height - edge) // 2, (width - edge) // 2
    square = Image.fromarray(np.ascontiguousarray(pixels[top : top + edge, left : left + edge]))
    method = Image.Resampling.NEAREST if edge < _TILE else Image.Resampling.BOX
    return np.asarray(square.resize((_TILE, _TILE), method))
