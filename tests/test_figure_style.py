"""Figures with class names in any script."""

import io
import warnings
from collections.abc import Iterator

import matplotlib
import pytest
from matplotlib.figure import Figure

from dietcl.report import figure_style as styles
from dietcl.report.figure_style import cjk_fonts, figure_style


@pytest.fixture(autouse=True)
def _fresh_fonts() -> Iterator[None]:
    cjk_fonts.cache_clear()
    yield
    cjk_fonts.cache_clear()


def draw(text: str) -> None:
    figure = Figure(figsize=(1, 1))
    figure.text(0, 0, text)
    figure.savefig(io.BytesIO(), format="png")


def test_characters_without_a_font_are_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(styles, "CJK_FONTS", ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with figure_style():
            draw("猫 cat")
            draw("魚 fish, 猫")
    advice = "drawn as boxes in figures; install a font such as Noto Sans CJK"
    assert capsys.readouterr() == ("", f"no installed font has 猫魚, {advice}\n")


def test_plain_text_warns_of_nothing_and_other_warnings_pass() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with figure_style():
            draw("Katze Ж ß")
    with pytest.warns(UserWarning, match="another matter"), figure_style():
        warnings.warn("another matter", stacklevel=1)


def test_installed_fonts_follow_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(styles, "CJK_FONTS", ("Not Installed", "DejaVu Serif"))
    with figure_style():
        assert matplotlib.rcParams["font.family"] == ["DejaVu Sans", "DejaVu Serif"]
