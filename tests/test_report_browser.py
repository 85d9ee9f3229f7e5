"""The page in a real browser: no error, the right lines, values under the pointer, and labels as text."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from dietcl.report.page import write_report
from dietcl.report.runs import RunRecord, read_runs
from helpers.fake_runs import write_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = [pytest.mark.long, pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with chromedriver")]

SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,1000",
)
NASTY = "<script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    paths = [
        write_run(folder / "one", labels=(NASTY, "b"), curves=True),
        write_run(folder / "two", method="er"),
        write_run(folder / "three", method="naive", seed=0),
        write_run(folder / "four", method="naive", seed=1),
    ]
    config = json.loads((paths[1] / "config.json").read_text())
    (paths[1] / "config.json").write_text(json.dumps(config | {"method": "<script>er"}))
    return paths


@pytest.fixture(scope="module")
def page(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(folders, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def runs(folders: list[Path]) -> tuple[RunRecord, ...]:
    return read_runs(folders)


def open_chromium(profile: Path) -> "webdriver.Chrome":
    """Start a browser that keeps what it needs in a folder."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in (*SWITCHES, f"--user-data-dir={profile}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator["webdriver.Chrome"]:
    driver = open_chromium(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: "webdriver.Chrome", page: Path) -> Iterator["webdriver.Chrome"]:
    """The freshly loaded page; a test fails on any word in the console."""
    chromium.get(page.as_uri())
    WebDriverWait(chromium, 20).until(lines)  # they are drawn once the page knows its width
    yield chromium
    assert chromium.get_log("browser") == []


def chart_of(browser: "webdriver.Chrome", kind: str) -> WebElement:
    return bring(browser, f'.chart[data-kind="{kind}"] svg')


def bring(browser: "webdriver.Chrome", selector: str) -> WebElement:
    """Scroll an element into view at once: the page itself glides, and a click would miss."""
    element = browser.find_element(By.CSS_SELECTOR, selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    return element


def lines(browser: "webdriver.Chrome", selector: str = ".run-line") -> list[WebElement]:
    return browser.find_elements(By.CSS_SELECTOR, f'.chart[data-kind="accuracy"] {selector}')


def hover(browser: "webdriver.Chrome", chart: WebElement, x: float, y: float) -> str:
    """Move the pointer to a place in the chart's own pixels and return what the tooltip says."""
    size = chart.size
    offset = (round(x - size["width"] / 2), round(y - size["height"] / 2))
    ActionChains(browser).move_to_element_with_offset(chart, *offset).perform()
    return browser.find_element(By.ID, "tip").text


def tick(chart: WebElement, t: int) -> float:
    """Return where the x axis marks a time step."""
    marks = chart.find_elements(By.CSS_SELECTOR, 'text[text-anchor="middle"]')
    return float(next(mark for mark in marks if mark.text == str(t)).get_attribute("x"))


def test_every_run_is_a_line_and_a_label_is_text(browser: "webdriver.Chrome") -> None:
    assert len(lines(browser)) == 4
    assert len(lines(browser, ".mean-line")) == 1  # of the two seeds of naive
    assert browser.title.startswith("dietcl, <script>er and naive on glyphs")
    tiles = [tile.text for tile in browser.find_elements(By.CSS_SELECTOR, ".tile b")]
    assert any(NASTY in text for text in tiles)
    legend = browser.find_element(By.CSS_SELECTOR, "#tools .legend").text
    assert "<script>er" in legend


def test_the_tooltip_shows_the_value_under_the_pointer(
    browser: "webdriver.Chrome", runs: tuple[RunRecord, ...]
) -> None:
    chart = chart_of(browser, "accuracy")
    text = hover(browser, chart, tick(chart, 7), 200)
    assert "After time step 7" in text
    for run in runs[:2]:
        value, error = 100 * run.summary.accuracy_mean[6], 100 * run.summary.accuracy_mean_se[6]
        assert f"{value:.1f} % ± {error:.1f}" in text
    both = 50 * (runs[2].summary.accuracy_mean[6] + runs[3].summary.accuracy_mean[6])
    assert f"{both:.1f} % ±" in text


def test_arrow_keys_read_the_chart(browser: "webdriver.Chrome", runs: tuple[RunRecord, ...]) -> None:
    chart_of(browser, "accuracy").send_keys(Keys.ARROW_RIGHT)
    text = browser.find_element(By.ID, "tip").text
    assert "After time step 1" in text
    assert f"{100 * runs[0].summary.accuracy_mean[0]:.1f} %" in text


def test_the_switch_turns_from_mean_to_pooled(browser: "webdriver.Chrome", runs: tuple[RunRecord, ...]) -> None:
    before = lines(browser)[0].get_attribute("d")
    bring(browser, '[data-measure="accuracy_pooled"]').click()
    assert lines(browser)[0].get_attribute("d") != before
    chart = chart_of(browser, "accuracy")
    assert f"{100 * runs[0].summary.accuracy_pooled[6]:.1f} %" in hover(browser, chart, tick(chart, 7), 200)


def test_a_click_on_the_legend_hides_a_run_and_another_brings_it_back(browser: "webdriver.Chrome") -> None:
    button = bring(browser, '#tools [data-runs="0"]')
    button.click()
    assert [line.get_attribute("data-run") for line in lines(browser)] == ["1", "2", "3"]
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert len(lines(browser)) == 4
    bring(browser, '#tools [data-runs="2 3"]').click()
    assert [line.get_attribute("data-run") for line in lines(browser)] == ["0", "1"]


def test_the_matrix_has_a_cell_per_measurement(browser: "webdriver.Chrome", runs: tuple[RunRecord, ...]) -> None:
    chart = chart_of(browser, "matrix")
    cells = chart.find_elements(By.CSS_SELECTOR, ".cell")
    assert len(cells) == 20 * 21 // 2 + 19
    first = cells[0]
    place = [float(first.get_attribute(key)) + 2 for key in ("x", "y")]
    text = hover(browser, chart, *place)
    assert f"{100 * runs[0].summary.accuracy[0, 0]:.1f} %" in text


def test_the_axes_of_a_small_matrix_mark_every_time_step(chromium: "webdriver.Chrome", tmp_path: Path) -> None:
    sizes = (1, 2, 3, 4, 5, 12)
    folders = [write_run(tmp_path / str(size), method="er", time_steps=size) for size in sizes]
    chromium.get(write_report(folders, tmp_path / "report").as_uri())
    WebDriverWait(chromium, 20).until(lambda page: page.find_elements(By.CSS_SELECTOR, ".cell-value"))
    charts = chromium.find_elements(By.CSS_SELECTOR, '.chart[data-kind="matrix"] svg')
    for size, chart in zip(sizes, charts, strict=True):
        rows = [int(mark.text) for mark in chart.find_elements(By.CSS_SELECTOR, 'text[text-anchor="end"]')]
        marks = chart.find_elements(By.CSS_SELECTOR, 'text[text-anchor="middle"]:not(.title, .cell-value)')
        assert rows == [int(mark.text) for mark in marks]
        assert rows == list(range(1, size + 1)) if size < 12 else len(rows) >= 6
    assert chromium.get_log("browser") == []


def test_the_other_charts_answer_the_pointer(browser: "webdriver.Chrome") -> None:
    budget = chart_of(browser, "budget")
    assert len(budget.find_elements(By.CSS_SELECTOR, ".bar")) == 3 * 20
    text = hover(browser, budget, tick(budget, 10), 120)
    assert "Time step 10" in text
    assert "512 (40 %)" in text
    losses = chart_of(browser, "losses")
    assert len(losses.find_elements(By.CSS_SELECTOR, ".line")) == 3
    assert "During time step 5" in hover(browser, losses, tick(losses, 5), 120)
    within = chart_of(browser, "within")
    assert len(within.find_elements(By.CSS_SELECTOR, ".line")) == 6
    assert "older, mean" in hover(browser, within, tick(within, 4), 120)


def test_the_tooltips_of_a_dated_stream_have_its_dates(chromium: "webdriver.Chrome", tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", time_steps=4, curves=True)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for event in events:
        if event["event"] == "step_begin":  # ten days each, from 2023-11-14
            event["times"] = [1.7e9 + 864_000 * (event["t"] - 1), 1.7e9 + 864_000 * event["t"] - 86_400]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    chromium.get(write_report([folder], tmp_path / "report").as_uri())
    WebDriverWait(chromium, 20).until(lines)
    said = {}
    for kind in ("accuracy", "budget", "losses", "within"):
        chart = chart_of(chromium, kind)
        WebDriverWait(chromium, 20).until(lambda _, chart=chart: "by first date" in chart.text)
        said[kind] = hover(chromium, chart, chart.size["width"] - 90, 120)
    dates = "(2023-12-14 to 2023-12-23)"
    assert said["accuracy"].startswith(f"After time step 4 {dates}")
    assert said["budget"].startswith(f"Time step 4 {dates}")
    assert said["losses"].startswith(f"During time step 4 {dates}")
    assert said["within"].startswith(f"During time step 4 {dates}")
    assert "images of time step 2023-1" in said["within"]
    assert chromium.get_log("browser") == []


@pytest.mark.parametrize("width", [360, 480, 1280])
def test_the_page_never_scrolls_sideways(browser: "webdriver.Chrome", width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_dark_readers_get_a_dark_page(browser: "webdriver.Chrome") -> None:
    def background(scheme: str) -> str:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))

    assert background("dark") == "rgb(16, 19, 23)"
    assert background("light") == "rgb(250, 250, 248)"
