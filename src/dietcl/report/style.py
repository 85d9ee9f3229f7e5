"""How groups of runs differ in charts: colour times line pattern, the same on the page and in the PNG figures."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

# Okabe and Ito's colours, which readers with any colour vision can tell apart, with purple in the place of yellow,
# which is too pale on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B5B5B", "#6A3D9A")
# For purposes and loss terms, so that they are not taken for runs (after Paul Tol's muted scheme).
NAME_PALETTE = ("#4B3FA6", "#C2576B", "#3AA394", "#C2A938", "#7CC4EA", "#A0479A", "#8A8A2E")
# Solid, dashed, dotted, dash-dotted, as matplotlib takes them (in line widths); page.css has the same as l0 to l3.
PATTERNS: tuple[Any, ...] = ("solid", (0, (3.6, 1.5)), (0, (1.1, 1.2)), (0, (5, 1.3, 1.1, 1.3)))
# The further line, dashed and twice dotted (l4), is for users' own methods and further configurations of a method.
LINES = (*PATTERNS, (0, (5, 1.3, 1.1, 1.3, 1.1, 1.3)))
# A row for each colour, a column for each line pattern: what is often compared comes first, and a variant has the
# colour of its method. Gray dotted is chance.
_METHODS = (
    ("dietcl", "dietcl:release", "dietcl:labeled", "dietcl:unbroken"),
    ("er", "er:uniform", "er:dietcl_flops", "derpp"),
    ("linear_probe", "cassle", "linear_probe:sgd", "l2p"),
    ("ranpac", "ccic", "ranpac:frozen", "ncm"),
    ("er_ace", "naive", "ewc", "mas"),
    ("fixmatch", "dualnet", "lwf", "acm"),
    ("gdumb", "joint", "", "one_stage"),
    ("larder", "larder:small", "", "two_stage"),
)
# The purposes and loss terms of the methods by colour; no two of one colour are in one chart.
_NAMES = (
    *("labeled, labels, masked, classifier", "memory, replay, predictor", "unlabeled, reconstruct, views, keys, query"),
    *("triplet, projector, logits, penalty, importance, solve, pool", "embed, distill, teacher, soft targets, project"),
    *("cross, features, fast, prompt", "guess, head"),
)
NAME_PLACES = {name: place for place, names in enumerate(_NAMES) for name in names.split(", ")}
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
    """Places in PALETTE and LINES."""

    color: int
    pattern: int


def look(place: int) -> Look:
    """Return the colour and the pattern at a place; each colour in each of PATTERNS has one."""
    return Look(place % len(PALETTE), place // len(PALETTE) % len(PATTERNS))


METHOD_LOOKS = {name: Look(color, line) for color, row in enumerate(_METHODS) for line, name in enumerate(row) if name}


def page_css() -> str:
    """Return the style sheet of HTML pages."""
    return files("dietcl.report").joinpath("page.css").read_text("utf-8")
