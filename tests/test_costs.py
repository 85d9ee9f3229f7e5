"""What each method books is what arithmetic on paper says, part by part."""

from pathlib import Path

import pytest

from benchmarks import costs
from benchmarks.cost_oracle import ARITHMETIC
from dietcl.methods import METHODS
from helpers.marks import mostly_long
from reproduction.show.table_formats import marks

ONLY = {"linear_probe:sgd": {"head"}, "ranpac:frozen": {"features", "end"}}


@pytest.mark.parametrize("method", mostly_long([*METHODS, *costs.VARIANTS], {"dietcl", "ewc", "l2p", "lwf", "ranpac"}))
def test_receipts_agree_with_arithmetic_on_paper(method):
    found = costs.measure(method, "micro")
    expected = ARITHMETIC[method.partition(":")[0]].keys() - {"linear_probe": {"head"}}.get(method, set())
    assert {part for part, _ in found} == ONLY.get(method, expected)
    for part, cost in found.items():
        assert cost.images > 0
        assert min(*cost.paper, *cost.booked) > 0, part
        assert cost.booked == pytest.approx(cost.paper, rel=costs.TOLERANCE), part


def test_a_price_that_is_wrong_is_seen():
    cost = costs.Cost()
    cost.add(10, (10.0, 9.0), (10.0, 9.0))
    assert cost.agrees()
    cost.add(10, (10.0, 9.0), (10.0, 9.5))
    assert not cost.agrees()


def test_the_table_goes_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    begin, end = marks(costs.MARK)
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    assert costs.main(["--methods", "ncm", "--write", str(page)]) == 0
    text = page.read_text()
    assert text.startswith(f"before\n{begin}\n")
    assert text.endswith(f"{end}\nafter\n")
    assert "| `ncm` | new label | f | 0.333 | 0.333 |" in text
    assert "old" not in text


def test_the_page_on_methods_has_costs_of_every_method():
    page = (Path(__file__).parents[1] / "docs/methods.md").read_text(encoding="utf-8")
    begin, end = marks(costs.MARK)
    table = page.partition(begin)[2].partition(end)[0]
    assert [name for name in (*METHODS, *costs.VARIANTS) if f"| `{name}` |" not in table] == []
