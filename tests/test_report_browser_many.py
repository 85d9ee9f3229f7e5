"""The page of many methods in a real browser: lines that differ, a legend that raises them, a point that is seen."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from dietcl.report.figures import Figure
from dietcl.report.groups import Group, entries_of
from dietcl.report.page import write_report
from dietcl.report.runs import read_runs
from helpers.fake_runs import write_run
from test_report_browser import CHROMIUM, DRIVER, bring, chart_of, hover, lines, open_chromium, tick

pytestmark = [pytest.mark.long, pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with chromedriver")]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator["webdriver.Chrome"]:
    driver = open_chromium(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Ten methods, the last with two seeds, and `joint`, which is tested only at its end."""
    folder = tmp_path_factory.mktemp("many")
    names = ("dietcl", "er", "er_ace", "ewc", "mas", "gdumb", "joint", "lwf", "naive", "acm")
    paths = [write_run(folder / name, method=name, time_steps=6) for name in names]
    return (*paths, write_run(folder / "again", method="acm", seed=1, time_steps=6))


@pytest.fixture
def crowd(
    chromium: "webdriver.Chrome", many: tuple[Path, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator["webdriver.Chrome"]:
    """The freshly loaded page of many methods."""
    with pytest.MonkeyPatch.context() as patch:
        # The charts are drawn by the page; which there are is all that it takes from the figures.
        patch.setattr("dietcl.report.page.write_figures", _figures)
        patch.setattr("dietcl.report.panels.figure_element", lambda path, alt: "")
        chromium.get(write_report(many, tmp_path_factory.mktemp("crowd")).as_uri())
    WebDriverWait(chromium, 20).until(lines)  # they are drawn once the page knows its width
    yield chromium
    assert chromium.get_log("browser") == []


def _figures(groups: Sequence[Group], folder: Path) -> list[Figure]:
    kinds = ("matrix", "budget", "losses")
    return [Figure(folder, kind, i, "") for i in range(len(entries_of(groups))) for kind in kinds]


def _raised(browser: "webdriver.Chrome") -> list[str | None]:
    """Return the places of the groups whose lines are not faded."""
    layers = lines(browser, "[data-group]")
    return sorted(
        layer.get_attribute("data-group") for layer in layers if layer.value_of_css_property("opacity") == "1"
    )


def test_many_lines_differ_and_nothing_piles_up(crowd: "webdriver.Chrome") -> None:
    drawn = lines(crowd, "[data-group] .run-line:not(.thin), [data-group] .mean-line")
    looks = [tuple(line.value_of_css_property(f"stroke{key}") for key in ("", "-dasharray")) for line in drawn]
    assert len(set(looks)) == len(looks) == 10
    assert lines(crowd, ".band") == []
    for hidden in (".end", ".thin"):
        found = lines(crowd, hidden)
        assert found
        assert not any(item.is_displayed() for item in found)
    keys = crowd.find_elements(By.CSS_SELECTOR, "#tools .key, #comparison .key")
    assert len({key.get_attribute("class") for key in keys}) == 10
    bars = [key for key in keys if "point" not in key.get_attribute("class")]
    assert len({key.value_of_css_property("background") for key in bars}) == 9  # joint is a diamond


def test_the_legend_of_many_lines_has_their_values_and_raises_them(
    crowd: "webdriver.Chrome", many: tuple[Path, ...]
) -> None:
    runs = read_runs(many)
    finals = {run.method: 100 * run.summary.final_mean for run in runs[:-2]}
    finals["acm"] = 50 * (runs[-2].summary.final_mean + runs[-1].summary.final_mean)
    buttons = crowd.find_elements(By.CSS_SELECTOR, "#tools .legend button")
    said = [button.text.split() for button in buttons]
    assert said == [[name, f"{finals[name]:.1f}"] for name in sorted(finals, key=lambda name: -finals[name])]
    assert len(_raised(crowd)) == 10
    acm = next(button for button in buttons if button.text.startswith("acm"))
    bring(crowd, "#tools")
    ActionChains(crowd).move_to_element(acm).perform()
    assert _raised(crowd) == ["9"]
    assert [end.text for end in lines(crowd, ".end") if end.is_displayed()] == [f"{finals['acm']:.1f}"]
    assert sum(seed.is_displayed() for seed in lines(crowd, ".thin")) == 2
    ActionChains(crowd).move_to_element(crowd.find_element(By.TAG_NAME, "h2")).perform()
    assert len(_raised(crowd)) == 10
    # The page must not glide: another entry would come under the pointer, which rests.
    crowd.execute_script("arguments[0].focus({preventScroll: true})", buttons[0])
    assert _raised(crowd) == [buttons[0].find_element(By.XPATH, "..").get_attribute("data-entry")]
    crowd.execute_script("arguments[0].blur()", buttons[0])
    assert len(_raised(crowd)) == 10


def test_all_lines_are_hidden_and_shown_at_once(crowd: "webdriver.Chrome") -> None:
    hide = bring(crowd, "#tools .switch + .switch button:last-child")
    hide.click()
    assert lines(crowd) == []
    crowd.find_element(By.CSS_SELECTOR, '#tools [data-runs="1"]').click()
    assert [line.get_attribute("data-run") for line in lines(crowd)] == ["1"]
    crowd.find_element(By.CSS_SELECTOR, "#tools .switch + .switch button").click()
    assert len(lines(crowd)) == 11


def test_the_tooltip_of_many_lines_shows_those_near_the_pointer(
    crowd: "webdriver.Chrome", many: tuple[Path, ...]
) -> None:
    naive = read_runs(many)[8]
    chart = chart_of(crowd, "accuracy")
    bottom = chart.size["height"] - 46
    text = hover(crowd, chart, tick(chart, 6), bottom).splitlines()
    assert text[0] == "After time step 6, places 2 to 10 of 10"
    assert len(text) == 1 + 2 * 9 + 2
    assert f"{100 * naive.summary.final_mean:.1f} %" in text[-3]
    assert text[-2:] == ["chance", "8.3 %"]  # among 12 classes
    assert _raised(crowd) == ["8"]
    assert crowd.find_element(By.CSS_SELECTOR, "#tip .strong").text.startswith("naive")


def test_a_run_tested_at_the_end_has_a_diamond_one_row_and_one_bar(
    crowd: "webdriver.Chrome", many: tuple[Path, ...]
) -> None:
    (diamond,) = lines(crowd, ".point")
    assert diamond.find_element(By.XPATH, "..").get_attribute("data-group") == "6"
    assert diamond.size["width"] > 12
    crowd.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    drawn = '.chart[data-kind="{}"][data-run="6"] {}'.format
    # What was folded is drawn a moment after it opens.
    WebDriverWait(crowd, 20).until(lambda browser: browser.find_elements(By.CSS_SELECTOR, drawn("budget", ".bar")))
    cells = crowd.find_elements(By.CSS_SELECTOR, drawn("matrix", ".cell"))
    assert len({cell.get_attribute("y") for cell in cells}) == 1
    assert len(cells) == 6
    bars = crowd.find_elements(By.CSS_SELECTOR, drawn("budget", ".bar"))
    assert [float(bar.get_attribute("width")) for bar in bars] == [64, 64]
    assert f"{read_runs(many)[6].receipts.passes:,.0f} passes, all at once" in crowd.page_source


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_of_many_methods_never_scrolls_sideways(crowd: "webdriver.Chrome", width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    crowd.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        assert crowd.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        crowd.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
