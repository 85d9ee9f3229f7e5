"""The look of matplotlib figures, with fallback fonts for class names in any script."""

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.ticker import MaxNLocator

from dietcl.report.series import Dates, first_date
from dietcl.report.style import MATPLOTLIB

CJK_FONTS = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans CJK TC", "Noto Sans CJK KR", "Noto Sans JP", "Noto Sans SC"),
    *("Noto Sans TC", "Noto Sans KR", "Source Han Sans", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei"),
    *("Droid Sans Fallback", "IPAexGothic", "TakaoGothic", "NanumGothic", "Hiragino Sans", "PingFang SC"),
    *("Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "SimHei", "Arial Unicode MS"),
)
_MISSING = re.compile(r"Glyph (\d+) .*missing from font")


@cache
def cjk_fonts() -> tuple[str, ...]:
    """Return the installed fonts for Chinese, Japanese and Korean."""
    installed = set(font_manager.get_font_names())
    return tuple(name for name in CJK_FONTS if name in installed)


@contextmanager
def figure_style() -> Iterator[None]:
    """Draw and save figures inside; characters that no font has are named in one line on standard error."""
    style = {**MATPLOTLIB, "font.family": [MATPLOTLIB["font.family"], *cjk_fonts()]}
    with warnings.catch_warnings(record=True) as caught, matplotlib.rc_context(style):
        warnings.simplefilter("always")
        yield
    missing = set()
    for warning in caught:
        if found := _MISSING.match(str(warning.message)):
            missing.add(chr(int(found[1])))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if missing:
        shown = "".join(sorted(missing)[:20])
        advice = "drawn as boxes in figures; install a font such as Noto Sans CJK"
        print(f"no installed font has {shown}, {advice}", file=sys.stderr)


def whole_numbers(most: int = 10) -> Any:
    """Return a locator of ticks at whole numbers, also where an axis spans a single one."""
    return MaxNLocator(most, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)


def show_dates(axis: Any, dates: Dates) -> None:
    """Write the first date of a time step beside an axis in place of its number."""
    if dates is not None:
        begins = [first_date(date, "\n" if axis.axis_name == "x" else " ") for date in dates]
        axis.set_major_formatter(lambda t, _: begins[int(t) - 1] if t in range(1, len(begins) + 1) else "")
        axis.set_label_text(f"{axis.get_label_text()}, by first date")


def show_time_steps(axes: Any, t: Any) -> None:
    """Limit an axis to some time steps, each of which is a bar."""
    margin = 0.6 if len(t) > 1 else 1.6  # a single bar must not fill the axes
    axes.set_xlim(t[0] - margin, t[-1] + margin)
    if len(t) == 1:
        axes.set_xticks(t)


def shorten(text: str, most: int) -> str:
    """Return a text in one line of at most `most` letters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
