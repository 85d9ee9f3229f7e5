"""Pictures of a stream before anything is learned: a contact sheet, the label rate, and the classes that arrive."""

import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dietcl.report import arrivals
from dietcl.report.arrivals import Arrivals, shorten, training_rows
from dietcl.report.style import MATPLOTLIB, PALETTE, QUIET, WRONG
from dietcl.streams.decode import Pixels, Unreadable
from dietcl.streams.image_reader import Gallery
from dietcl.streams.index import Index
from dietcl.streams.stream import Stream, TimeStep

MOST_COLUMNS = 20
CAPTION = "labels as in the manifest, those that stay hidden included"
NO_LABEL = "(no label)"
_TILE = 128  # pixels
_PITCH = 0.95  # inches from one tile to the next
_WIDE = 0.9  # of a tile, where the next one begins at 1
_FRAME = PALETTE[1]


@dataclass(frozen=True)
class Cell:
    """Some training images of one class in one time step."""

    rows: tuple[int, ...]  # of the manifest; those with a revealed label first
    labeled: tuple[bool, ...]


def draw_stream(
    stream: Stream, index: Index, label_rate: float, folder: Path, per_cell: int = 1, classes: int = 12
) -> list[Path]:
    """Write contact.png, label-rate.png and classes.png into a folder."""
    import matplotlib

    there = arrivals.find_arrivals(stream, index)
    paths = []
    with matplotlib.rc_context(MATPLOTLIB):
        for name, figure in (
            ("contact", _contact(stream, index, there, per_cell, classes)),
            ("label-rate", arrivals.label_rate(stream, label_rate)),
            ("classes", arrivals.classes(stream, there)),
        ):
            path = folder / f"{name}.png"
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Glyph .* missing from font")
                figure.savefig(path)
            paths.append(path)
    return paths


def _cells(stream: Stream, index: Index, step: TimeStep, wanted: Iterable[int], per_cell: int) -> dict[int, Cell]:
    """Choose images of each wanted class of a time step; opaque row numbers are in random order already."""
    rows = training_rows(stream, step)
    codes = index.label[rows]
    cells = {}
    for code in wanted:
        places = np.flatnonzero(codes == code)[:per_cell]
        if len(places):
            cells[code] = Cell(tuple(rows[places].tolist()), tuple((places < len(step.labeled)).tolist()))
    return cells


def _contact(stream: Stream, index: Index, arrivals: Arrivals, per_cell: int, classes: int) -> Any:
    steps = evenly(len(stream.steps), MOST_COLUMNS)
    first = list(arrivals.order[:classes])
    filled = sum(code in arrivals.present[t] for code in first for t in steps)
    fresh = sum(bool(arrivals.new[t]) for t in steps)
    times = Counter(code for there in arrivals.present for code in there)
    once = sum(count == 1 for count in times.values())
    # Where classes come and go, a table of classes by time steps would be nearly empty.
    is_sparse = filled < 0.25 * len(first) * len(steps) or once >= 0.75 * len(times)
    if is_sparse and 2 * fresh >= len(steps) > 1:
        return _by_step(stream, index, arrivals, steps, per_cell, classes)
    return _by_class(stream, index, arrivals, steps, first, per_cell)


def _by_class(
    stream: Stream, index: Index, arrivals: Arrivals, steps: Sequence[int], first: list[int], per_cell: int
) -> Any:
    """Draw a row for each class and a column for each time step."""
    is_unknown = any((index.label[training_rows(stream, stream.steps[t])] < 0).any() for t in steps)
    wanted = [*first, *([-1] if is_unknown else [])]
    names = [_name(index, code, 18) for code in wanted]
    many = len(arrivals.order)
    shown = f"the first {len(first)} of {many:,} classes to arrive" if len(first) < many else f"all {many} classes"
    board = _Board(max(1, len(wanted)), len(steps), 0.1, per_cell, left=0.08 * max(map(len, names), default=1) + 0.2)
    images = Gallery(index)
    for column, t in enumerate(steps):
        cells = _cells(stream, index, stream.steps[t], wanted, per_cell)
        for row, code in enumerate(wanted):
            if code in cells:
                board.put(images, cells[code], row, column)
            else:
                board.axes.plot(column + _WIDE / 2, board.middle(row), ".", color="#D1D5DB", ms=3)
    for row, name in enumerate(names):
        board.axes.text(-0.1, board.middle(row), name, fontsize=9, color="#374151", ha="right", va="center")
    return board.finish(stream, steps, shown)


def _by_step(
    stream: Stream, index: Index, arrivals: Arrivals, steps: Sequence[int], per_cell: int, classes: int
) -> Any:
    """Draw a column for each time step with the classes that it is the first to have."""
    rows = min(classes, max(len(arrivals.new[t]) for t in steps))
    more = any(len(arrivals.new[t]) > rows for t in steps)
    board = _Board(rows, len(steps), 0.3, per_cell, bottom=0.25 if more else 0.0)
    images = Gallery(index)
    for column, t in enumerate(steps):
        codes = arrivals.new[t][:rows]
        cells = _cells(stream, index, stream.steps[t], codes, per_cell)
        for row, code in enumerate(codes):
            board.put(images, cells[code], row, column)
            said: Any = {"fontsize": 7, "color": "#374151", "ha": "center", "va": "top"}
            board.axes.text(column + _WIDE / 2, board.bottom(row) + 0.04, _name(index, code, 14), **said)
        if len(arrivals.new[t]) > rows:
            words = f"+ {len(arrivals.new[t]) - rows:,} more"
            place = (column + _WIDE / 2, board.bottom(rows - 1) + 0.32)
            board.axes.text(*place, words, fontsize=7, color=QUIET, ha="center", va="top")
    shown = "in each column the classes whose first images arrive at that time step"
    return board.finish(stream, steps, shown)


class _Board:
    """Axes in which a tile is 0.9 wide and the next one begins 1 further to the right."""

    def __init__(
        self, rows: int, columns: int, gap: float, per_cell: int, left: float = 0.0, bottom: float = 0.0
    ) -> None:
        from matplotlib.figure import Figure

        self._grid = int(np.ceil(np.sqrt(per_cell)))
        self._cell = _WIDE * -(-per_cell // self._grid) / self._grid
        self._height = height = self._cell + gap
        self._pitch = _PITCH * min(2.0, self._grid**0.5)
        self.left = left / self._pitch
        self._least = max(0.0, 6.4 - (columns * self._pitch + left)) / self._pitch  # titles want some width
        width = (columns + self.left + self._least) * self._pitch
        tall = (rows * height + bottom) * self._pitch
        self._head, self._foot = 0.95, 0.45
        whole = tall + self._head + self._foot
        self._crossed = 0  # images that cannot be read
        self.figure = Figure(figsize=(width + 0.3, whole))
        self.axes = self.figure.add_axes(
            (0.15 / (width + 0.3), self._foot / whole, width / (width + 0.3), tall / whole)
        )
        self.axes.set(xlim=(-self.left, columns + self._least), ylim=(rows * height + bottom, 0))
        self.axes.axis("off")

    def middle(self, row: int) -> float:
        """Return where the middle of a row is."""
        return self._height * row + self._cell / 2

    def bottom(self, row: int) -> float:
        """Return where the tiles of a row end."""
        return self._height * row + self._cell

    def put(self, images: Gallery, cell: Cell, row: int, column: int) -> None:
        """Draw the images of a cell; a revealed label makes a frame, and an image that cannot be read a cross."""
        from matplotlib.patches import Rectangle

        side = _WIDE / self._grid
        for place, (number, labeled) in enumerate(zip(cell.rows, cell.labeled, strict=True)):
            down, right = divmod(place, self._grid)
            x, y = column + right * side, self._height * row + down * side
            width = side if self._grid == 1 else side * 0.94
            limits = self.axes.axis()
            try:
                tile = thumbnail(images.pixels(number, _TILE), _TILE)
                self.axes.imshow(tile, extent=(x, x + width, y + width, y), aspect="auto", interpolation="antialiased")
            except Unreadable:
                self._crossed += 1
                self.axes.add_patch(Rectangle((x, y), width, width, facecolor="#F3F4F6", edgecolor="none"))
                cross: Any = {"color": WRONG, "lw": 1.2, "solid_capstyle": "butt"}
                self.axes.plot([x, x + width], [y, y + width], **cross)
                self.axes.plot([x, x + width], [y + width, y], **cross)
            self.axes.axis(limits)
            look: Any = {"edgecolor": _FRAME, "lw": 2.2} if labeled else {"edgecolor": "#D1D5DB", "lw": 0.8}
            self.axes.add_patch(Rectangle((x, y), width, width, fill=False, clip_on=False, zorder=3, **look))

    def finish(self, stream: Stream, steps: Sequence[int], shown: str) -> Any:
        """Write what stands above and below the tiles."""
        for column, t in enumerate(steps):
            number = stream.steps[t].t
            said: Any = {"fontsize": 9, "color": "#374151", "ha": "center", "va": "bottom"}
            self.axes.text(column + _WIDE / 2, -0.06, f"t = {number}", clip_on=False, **said)
        height, width = self.figure.get_figheight(), self.figure.get_figwidth()
        left = 0.15 / width
        title = f"{shorten(stream.name, 60)}: training images by time step"
        parts = [shown] if shown else []
        if len(steps) < len(stream.steps):
            parts.append(f"{len(steps)} of {len(stream.steps):,} time steps, evenly spaced")
        self.figure.text(left, 1 - 0.12 / height, title, fontsize=12, fontweight="bold", va="top")
        self.figure.text(left, 1 - 0.36 / height, "; ".join(parts), fontsize=9, color=QUIET, va="top")
        self._key(left, 0.2 / height, width)
        return self.figure

    def _key(self, left: float, middle: float, width: float) -> None:
        from matplotlib.patches import Rectangle

        height = self.figure.get_figheight()
        side = 0.13
        box = (left, middle - side / 2 / height)
        look: Any = {"fill": False, "edgecolor": _FRAME, "lw": 2.2, "transform": self.figure.transFigure}
        self.figure.add_artist(Rectangle(box, side / width, side / height, **look))
        words = f"the label is revealed (such an image is shown where there is one); {CAPTION}"
        if self._crossed:
            words += f"; crossed out: {self._crossed} images that cannot be read"
        lines = textwrap.fill(words, max(40, int(width * 13)))
        self.figure.text(left + 0.22 / width, middle, lines, fontsize=8.5, color=QUIET, va="center")


def evenly(count: int, most: int) -> list[int]:
    """Return positions from 0 to below count, all of them or at most so many evenly spaced, both ends included."""
    chosen: list[int] = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()
    return chosen


def thumbnail(pixels: Pixels, side: int) -> Pixels:
    """Return the square in the middle of an image at another size; small images keep their pixels sharp."""
    from PIL import Image

    height, width = pixels.shape[:2]
    edge = min(height, width)
    top, left = (height - edge) // 2, (width - edge) // 2
    square = Image.fromarray(np.ascontiguousarray(pixels[top : top + edge, left : left + edge]))
    method = Image.Resampling.NEAREST if edge < side else Image.Resampling.BOX
    return np.asarray(square.resize((side, side), method))


def _name(index: Index, code: int, most: int) -> str:
    return shorten(index.classes[code], most) if code >= 0 else NO_LABEL
