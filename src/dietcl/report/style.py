"""How groups of runs differ in charts: colour times line pattern, the same on the page and in the PNG figures."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

# Okabe and Ito's colours, which readers with any colour vision can tell apart; yellow is too pale on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B5B5B")
# For purposes and loss terms, so that they are not taken for runs (after Paul Tol's muted scheme).
NAME_PALETTE = ("#4B3FA6", "#C2576B", "#3AA394", "#C2A938", "#7CC4EA", "#A0479A", "#8A8A2E")
# Solid, dashed, dotted, dash-dotted, as matplotlib takes them (in line widths); page.css has the same as l0 to l3.
PATTERNS: tuple[Any, ...] = ("solid", (0, (3.6, 1.5)), (0, (1.1, 1.2)), (0, (5, 1.3, 1.1, 1.3)))
LOOKS = len(PALETTE) * len(PATTERNS)
FEW = 6
"""Up to this number of groups a chart has room for bands, for single seeds and for labels at the ends of lines."""
RIGHT, WRONG, QUIET = "#009E73", "#D0342C", "#6B7280"
MATPLOTLIB: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9AA1AB",
    "axes.labelcolor": "#374151",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E7EB",
    "grid.linewidth": 0.8,
    "xtick.color": "#4B5563",
    "ytick.color": "#4B5563",
    "legend.frameon": False,
    "text.parse_math": False,  # labels come from the data and may have dollar signs
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.12,
    "figure.dpi": 100,
    "savefig.dpi": 150,
}


@dataclass(frozen=True)
class Look:
    """Places in PALETTE and PATTERNS."""

    color: int
    pattern: int


def look(place: int) -> Look:
    """Return the colour and the pattern at a place; LOOKS places differ."""
    return Look(place % len(PALETTE), place // len(PALETTE) % len(PATTERNS))


def page_css() -> str:
    """Return the style sheet of HTML pages."""
    return files("dietcl.report").joinpath("page.css").read_text("utf-8")
