"""Pictures of a stream before anything is learned: a contact sheet, the label rate, and the classes that arrive."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from PIL import Image
from PIL.Image import Resampling

from dietcl.plural import plural
from dietcl.report.figure_style import figure_style, shorten, show_dates, show_time_steps, whole_numbers
from dietcl.report.series import dates_of, evenly, first_date
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


def draw_stream(
    stream: Stream, index: Index, label_rate: float, folder: Path, per_cell: int, classes: int
) -> list[Path]:
    """Write contact.png, label-rate.png and classes.png into a folder."""
    new, present = _find_arrivals(stream, index)
    with figure_style():
        figures = {
            folder / "contact.png": _contact_sheet(_Board(stream, index, per_cell), new, present, classes),
            folder / "label-rate.png": _label_rate(stream, label_rate),
            folder / "classes.png": _classes(stream, np.array([len(codes) for codes in new])),
        }
        for path, figure in figures.items():
            figure.savefig(path)
    return list(figures)


def _label_rate(stream: Stream, asked: float) -> Any:
    labeled = np.array([len(step.labeled) for step in stream.steps])
    images = labeled + np.array([len(step.unlabeled) for step in stream.steps])
    rate = np.where(images > 0, 100 * labeled / np.maximum(1, images), np.nan)
    figure, above, t = _panels(stream, "labels revealed", "Labeled images", {PALETTE[0]: labeled})
    above.plot(t, rate, color=PALETTE[0], lw=2, label="realized")
    above.axhline(100 * asked, color=PALETTE[1], lw=1.4, ls=(0, (3.6, 1.5)), label=f"asked for: {100 * asked:.4g} %")
    highest = max(100 * asked, float(np.nanmax(rate, initial=0.0)))
    above.set(ylabel="Label rate (%)", ylim=(0, 1.15 * highest or 1))
    above.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    return figure


def _classes(stream: Stream, arrived: npt.NDArray[Any]) -> Any:
    revealed = np.array([len(step.new_classes) for step in stream.steps])
    bars = {PALETTE[5]: arrived, PALETTE[0]: revealed}
    figure, above, t = _panels(stream, "classes along the stream", "New classes", bars)
    images = "with an image (labels as in the manifest)"
    above.plot(t, np.cumsum(arrived), color=PALETTE[5], lw=3.4, label=images)
    above.plot(t, np.cumsum(revealed), color=PALETTE[0], lw=1.6, label="with a revealed label")
    above.set(ylabel="Classes so far", ylim=(0, 1.1 * max(1, arrived.sum())))
    above.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)
    return figure


def _panels(stream: Stream, title: str, bar_title: str, bars: dict[str, npt.NDArray[Any]]) -> tuple[Any, Any, Any]:
    """Draw bars by colour below empty axes; returns the figure, these axes and the numbers of the time steps."""
    figure = Figure(figsize=(8.0, 5.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    figure.suptitle(f"{shorten(stream.name, 60)}: {title}", x=0.015, ha="left", fontsize=11, fontweight="bold")
    above.xaxis.set_major_locator(whole_numbers())
    t = np.array([step.t for step in stream.steps])
    above.set_prop_cycle(marker=["o" if len(t) <= 60 else ""], ms=[4])
    show_time_steps(above, t)
    below.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    below.grid(visible=False, axis="x")
    width = 0.82 if len(t) <= 200 else 1.0  # gaps between hundreds of bars would be all that is seen
    for i, (color, values) in enumerate(bars.items()):
        below.bar(t + width * ((i + 0.5) / len(bars) - 0.5), values, width / len(bars), color=color)
    highest = np.max([*bars.values()], axis=0)
    below.set(ylabel=bar_title, xlabel="Time step", ylim=(0, 1.18 * max(1, int(highest.max(initial=0)))))
    show_dates(below.xaxis, dates_of(stream.times))
    if len(t) <= 25:
        for x, value in zip(t.tolist(), highest.tolist(), strict=True):
            below.text(x, value, f"{value:,}", fontsize=7.5, color=QUIET, ha="center", va="bottom")
    return figure, above, t


def _find_arrivals(stream: Stream, index: Index) -> tuple[list[list[int]], list[set[int]]]:
    """Return the new and all classes of each time step as codes of the manifest, hidden ones too; -1 means no label."""
    seen = {-1}
    new, present = [], []
    for step in stream.steps:
        codes, numbers = np.unique(index.label[_training_rows(stream, step)], return_counts=True)
        counts = dict(zip(codes.tolist(), numbers.tolist(), strict=True))
        # The most frequent first: with many classes in a time step, these are what it is about.
        new.append(sorted(counts.keys() - seen, key=lambda code: (-counts[code], code)))
        present.append(set(counts))
        seen |= counts.keys()
    return new, present


def _contact_sheet(board: "_Board", new: list[list[int]], present: list[set[int]], classes: int) -> Any:
    """Draw images of the first classes by time step, or of each time step's new classes where classes come and go."""
    steps, order = board.steps, [code for codes in new for code in codes]
    first = order[:classes]
    filled = sum(code in present[t] for code in first for t in steps)
    fresh = sum(bool(new[t]) for t in steps)
    times = Counter(code for codes in present for code in codes - {-1})
    once = sum(count == 1 for count in times.values())
    # Where classes come and go, a table of classes by time steps would be nearly empty.
    is_sparse = filled < 0.25 * len(first) * len(steps) or once >= 0.75 * len(times)
    if is_sparse and 2 * fresh >= len(steps) > 1:
        return _by_step(board, new, classes)
    wanted = [*first, -1] if any(-1 in present[t] for t in steps) else first
    part = f"the first {len(first)} of {len(order):,} classes to arrive"
    return _by_class(board, wanted, part if len(first) < len(order) else f"all {plural(len(order), 'class')}")


def _training_rows(stream: Stream, step: TimeStep) -> npt.NDArray[np.uint32]:
    """Return the manifest rows of a time step's training images, those with a revealed label first."""
    return np.asarray(stream.index_row[np.concatenate([step.labeled, step.unlabeled])])


def _by_class(board: "_Board", wanted: list[int], shown: str) -> Any:
    """Draw a row for each class and a column for each time step."""
    names = [shorten(board.index.classes[code], 18) if code >= 0 else "(no label)" for code in wanted]
    board.open(max(1, len(wanted)), gap=0.1, left=0.08 * max(map(len, names), default=1) + 0.2)
    for column in range(len(board.steps)):
        for row, is_empty in enumerate(board.put(column, wanted)):
            if is_empty:
                board.axes.plot(column + _WIDE / 2, board.height(row, 0.5), ".", color=_PALE, ms=3)
    for row, name in enumerate(names):
        board.axes.text(-0.1, board.height(row, 0.5), name, fontsize=9, color=_TEXT, ha="right", va="center")
    return board.finish(shown)


def _by_step(board: "_Board", new: list[list[int]], classes: int) -> Any:
    """Draw a column for each time step with the classes that it is the first to have."""
    most = max(len(new[t]) for t in board.steps)
    rows = min(classes, most)
    board.open(rows, gap=0.3, bottom=0.25 if most > rows else 0.0)
    style: Any = {"fontsize": 7, "ha": "center", "va": "top"}
    for column, t in enumerate(board.steps):
        middle, codes = column + _WIDE / 2, new[t][:rows]
        board.put(column, codes)
        for row, code in enumerate(codes):
            name = shorten(board.index.classes[code], 14)
            board.axes.text(middle, board.height(row, 1) + 0.04, name, color=_TEXT, **style)
        if more := len(new[t]) - len(codes):
            board.axes.text(middle, board.height(rows - 1, 1) + 0.32, f"+ {more:,} more", color=QUIET, **style)
    return board.finish("in each column the classes whose first images arrive at that time step")


class _Board:
    """Axes in which a tile is 0.9 wide and the next one begins at 1, with a column for each time step."""

    def __init__(self, stream: Stream, index: Index, per_cell: int) -> None:
        self.stream, self.index, self._per_cell = stream, index, per_cell
        self.steps = evenly(len(stream.steps), _MOST_COLUMNS)
        self._images = ImageReader(index)
        self._unreadable = 0

    def open(self, rows: int, gap: float, left: float = 0.0, bottom: float = 0.0) -> None:
        """Make room for rows with a gap between them, and for words at the left and at the bottom."""
        self._grid = int(np.ceil(np.sqrt(self._per_cell)))
        self._cell = _WIDE * -(-self._per_cell // self._grid) / self._grid
        self._row = self._cell + gap
        columns = len(self.steps)
        pitch = _PITCH * min(2.0, self._grid**0.5)
        least = max(0.0, 6.4 - (columns * pitch + left)) / pitch  # titles need some width
        width, height = (columns + left / pitch + least) * pitch, (rows * self._row + bottom) * pitch
        self._width, self._height = width + 2 * _MARGIN, height + _HEAD + _FOOT
        self.figure = Figure(figsize=(self._width, self._height))
        corner = (_MARGIN / self._width, _FOOT / self._height)
        self.axes = self.figure.add_axes((*corner, width / self._width, height / self._height))
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
        try:
            tile = _thumbnail(self._images.pixels(number, _TILE))
            self.axes.imshow(tile, extent=(x, x + width, y + width, y), aspect="auto", interpolation="antialiased")
        except Unreadable:
            self._unreadable += 1
            self.axes.add_patch(Rectangle(corner, width, width, facecolor="#F3F4F6", edgecolor="none"))
            for ends in ([y, y + width], [y + width, y]):
                self.axes.plot([x, x + width], ends, color=WRONG, lw=1.2, solid_capstyle="butt")
        frame = _FRAME if is_labeled else {"fill": False, "edgecolor": _PALE, "lw": 0.8}
        self.axes.add_patch(Rectangle(corner, width, width, clip_on=False, zorder=3, **frame))

    def finish(self, shown: str) -> Any:
        """Write the texts above and below the tiles."""
        above: Any = {"fontsize": 9, "color": _TEXT, "ha": "center", "va": "bottom", "clip_on": False}
        dates = dates_of(self.stream.times)
        for column, t in enumerate(self.steps):
            head = first_date(dates[t], "\n") if dates else f"t = {self.stream.steps[t].t}"
            self.axes.text(column + _WIDE / 2, -0.06, head, **above)
        if len(self.steps) < len(self.stream.steps):
            shown += f"; {len(self.steps)} of {len(self.stream.steps):,} time steps, evenly spaced"
        title = f"{shorten(self.stream.name, 60)}: training images by time step"
        left, middle = _MARGIN / self._width, 0.2 / self._height
        self.figure.text(left, 1 - 0.12 / self._height, title, fontsize=12, fontweight="bold", va="top")
        self.figure.text(left, 1 - 0.36 / self._height, shown, fontsize=9, color=QUIET, va="top")
        width, height = 0.13 / self._width, 0.13 / self._height
        key = (left, middle - height / 2)
        self.figure.add_artist(Rectangle(key, width, height, transform=self.figure.transFigure, **_FRAME))
        words = "the label is revealed (such an image is shown where there is one); "
        words += "labels as in the manifest, those that stay hidden included"
        if self._unreadable:
            words += f"; crossed out: {plural(self._unreadable, 'image')} that cannot be read"
        lines = textwrap.fill(words, max(40, int(self._width * 13)))
        self.figure.text(left + 0.22 / self._width, middle, lines, fontsize=8.5, color=QUIET, va="center")
        return self.figure


def _thumbnail(pixels: Pixels) -> Pixels:
    """Return the square in the middle of an image at the size of a tile; small images keep their pixels sharp."""
    image = Image.fromarray(pixels)
    edge = min(image.size)
    left, top = ((side - edge) // 2 for side in image.size)
    square = image.crop((left, top, left + edge, top + edge))
    return np.asarray(square.resize((_TILE, _TILE), Resampling.NEAREST if edge < _TILE else Resampling.BOX))
