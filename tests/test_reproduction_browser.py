"""The page of a suite in a real browser: its picture is drawn, its tables fit, nothing is fetched or complained of."""

import pytest
from selenium.webdriver.common.by import By

from helpers.scored_study import RuledStudy
from reproduction.show.publish import publish
from reproduction.suites import SUITES
from test_report_browser import CHROMIUM, DRIVER, open_chromium

pytestmark = [pytest.mark.long, pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium with chromedriver")]


def test_the_page_of_a_suite_shows_its_picture_and_every_row(tmp_path):
    study = RuledStudy("glyphs", tmp_path, lambda cell: 0.3 + 0.01 * (cell.config.seed % 100))
    suite = SUITES["table1"]
    sheets = publish(study, "table1", suite, study.measure(suite, seeds=2), tmp_path / "shown")
    browser = open_chromium(tmp_path / "profile")
    try:
        browser.get((tmp_path / "shown" / "table1.html").as_uri())
        assert browser.title == "glyphs: methods under the same budget – dietcl"
        picture = browser.find_element(By.TAG_NAME, "img")
        assert browser.execute_script("return arguments[0].complete && arguments[0].naturalWidth", picture) > 400
        assert picture.size["width"] <= 1240
        tables = browser.find_elements(By.TAG_NAME, "table")
        assert [len(table.find_elements(By.CSS_SELECTOR, "tbody tr")) for table in tables] == [
            len(sheet.rows) for sheet in sheets
        ]
        first = tables[0].find_elements(By.CSS_SELECTOR, "tbody tr")[0].text
        assert first.startswith("Upper bound (joint) 30.5 ± 0.7")
        body = "document.documentElement"
        assert browser.execute_script(f"return {body}.scrollWidth <= {body}.clientWidth")
        assert browser.get_log("browser") == []
    finally:
        browser.quit()
