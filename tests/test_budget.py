"""Budgets parse in exactly three forms and print as they parse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dietcl.budget.budget import Budget, Unit
from dietcl.errors import UserError


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("500", 500.0, "updates"),
        (" 0.5 ", 0.5, "updates"),
        ("1e3", 1000.0, "updates"),
        (".25", 0.25, "updates"),
        ("2e15flops", 2e15, "flops"),
        ("2e15 FLOPs", 2e15, "flops"),
        ("2E+15Flop", 2e15, "flops"),
        ("3PFLOPs", 3e15, "flops"),
        ("1.5 kflops", 1500.0, "flops"),
        ("7gflops", 7e9, "flops"),
        ("2h", 7200.0, "seconds"),
        ("1.5h", 5400.0, "seconds"),
        ("15min", 900.0, "seconds"),
        ("90s", 90.0, "seconds"),
        ("90 S", 90.0, "seconds"),
        ("1h30min", 5400.0, "seconds"),
        ("1h 1min 1s", 3661.0, "seconds"),
        ("1h5s", 3605.0, "seconds"),
        ("1e-3s", 1e-3, "seconds"),
    ],
)
def test_parses(text: str, amount: float, unit: Unit) -> None:
    assert Budget.parse(text) == Budget(amount, unit)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "0",
            "0s",
            "0h0min",
            "-5",
            "-2h",
            "nan",
            "inf",
            "1e999",
            "1e999flops",
            "1e",
            "1_000",
            "1,000",
        ),
        *(
            "2h500",
            "500 2h",
            "2h3e9flops",
            "2h2h",
            "30min1h",
            "5m",
            "5 days",
            "2e15flops/s",
            "flops",
            "h",
            "٣",
        ),
    ],
)
def test_refuses_and_shows_the_valid_forms(text: str) -> None:
    with pytest.raises(UserError) as caught:
        Budget.parse(text)
    message = str(caught.value)
    assert f'"{text}"' in message
    assert all(form in message for form in ("--budget", "500", "2e15flops", "2h"))


@pytest.mark.parametrize("amount", [0.0, -1.0, float("nan"), float("inf")])
def test_no_budget_without_a_positive_amount(amount: float) -> None:
    with pytest.raises(UserError):
        Budget(amount, "updates")


@given(
    st.floats(min_value=0, exclude_min=True, allow_infinity=False) | st.integers(1, 10**7).map(float),
    st.sampled_from(["updates", "flops", "seconds"]),
)
def test_text_round_trips(amount: float, unit: Unit) -> None:
    budget = Budget(amount, unit)
    assert Budget.parse(str(budget)) == budget


def test_text_is_short() -> None:
    texts = ["500", "0.5", "1000000", "2e15flops", "2h", "90min", "91s", "1.5s"]
    assert [str(Budget.parse(text)) for text in texts] == texts


@given(st.text(max_size=12))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        budget = Budget.parse(text)
    except UserError:
        return
    assert budget.amount > 0
