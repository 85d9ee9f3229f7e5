"""The ledger never overdraws, forgets nothing and carries nothing over."""

import json
import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.budget.budget import Budget
from dietcl.budget.cost import PROMPTED, CostModel, Operation
from dietcl.budget.ledger import Accounting, Ledger, Overdraft
from dietcl.budget.receipts import Item

# ViT-B/16 at 224 pixels with a decoder of 8 blocks of width 512.
BASE = CostModel(
    encoder_forward=35_126_120_448,
    encoder_pass=105_147_150_336,
    masked_forward=8_816_836_608,
    masked_pass=26_219_298_816,
    decoder_forward=10_744_643_584,
    decoder_pass=32_233_930_752,
    prompts={
        "prompt": (71_451_684_864, 383_311_872, 110_592),
        "prompt_train": (105_000_000_000, 560_000_000, 110_592),
        "prompt_forward": (35_000_000_000, 190_000_000, 36_864),
    },
    features=768,
)
WITH_GRADIENT = ["train", "importance", "reconstruct", "prompt", "prompt_train"]
FORWARD_ONLY = ["forward", "reconstruct_forward", "prompt_forward"]
HEAD_ALONE = ["head_train", "head_forward"]


class Clock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def opened(
    budget: str, accounting: Accounting = "images", batch: int = 1024, classes: int = 100, **more: Any
) -> Ledger:
    ledger = Ledger(Budget.parse(budget), accounting, batch, BASE, **more)
    ledger.open(1, classes)
    return ledger


def pay(ledger: Ledger, charge: tuple[str, str, float]) -> bool:
    """Make a charge and tell whether it was accepted."""
    purpose, operation, size = charge
    try:
        if operation == "solve":
            ledger.charge_flops(purpose, operation, size * 1e9)
        else:
            prompts = 25 if operation in PROMPTED else 0
            ledger.charge(purpose, operation, int(size), prompts=prompts)  # type: ignore[arg-type]
    except Overdraft:
        return False
    return True


accountings = st.sampled_from(get_args(Accounting))
budgets = st.builds(Budget, st.floats(0.01, 50), st.just("updates")) | st.builds(
    Budget, st.floats(1e10, 1e15), st.just("flops")
)
charges = st.tuples(
    st.sampled_from(["memory", "labeled"]),
    st.sampled_from([*get_args(Operation), "solve"]),
    st.integers(0, 300),
)


@given(budgets, accountings, st.lists(charges, max_size=60))
@settings(deadline=None)
def test_never_overdraws_and_everything_adds_up(
    budget: Budget, accounting: Accounting, wishes: list[tuple[str, str, float]]
) -> None:
    ledger = Ledger(budget, accounting, 64, BASE)
    ledger.open(1, 100)
    unlimited = opened("1e12", accounting)
    for wish in wishes:
        before, spent = ledger.state(), unlimited.spent
        pay(unlimited, wish)
        cost = unlimited.spent - spent
        left, slack = ledger.remaining, 1e-6 * (ledger.remaining + ledger.spent)
        if pay(ledger, wish):
            assert cost <= left + slack
        else:
            assert cost > left - slack
            assert ledger.state() == before
    receipt = ledger.close()
    assert receipt.spent <= receipt.budget * (1 + 1e-9)
    assert receipt.spent == receipt.passes
    assert sum(item.passes for item in receipt.items) == pytest.approx(receipt.spent, rel=1e-9)
    assert receipt.spent + receipt.unused == pytest.approx(receipt.budget, rel=1e-9)
    if budget.unit == "flops" and accounting == "flops":
        assert sum(item.flops for item in receipt.items) <= budget.amount * (1 + 1e-9)


@pytest.mark.parametrize("accounting", get_args(Accounting))
def test_exactly_500_updates_fit(accounting: Accounting) -> None:
    ledger = opened("500", accounting)
    for update in range(500):
        assert ledger.remaining_updates() == 500 - update
        assert ledger.spent_fraction() == update / 500
        for _ in range(4):
            ledger.charge("memory", "train", 256)
    assert not ledger.affords(1)
    with pytest.raises(Overdraft, match="train costs"):
        ledger.charge("memory", "train", 1)
    receipt = ledger.close()
    assert (receipt.budget, receipt.spent, receipt.unused) == (512_000.0, 512_000.0, 0.0)
    assert [(item.images, item.passes) for item in receipt.items] == [(512_000, 512_000.0)]


@given(st.integers(1, 2000), st.sampled_from([1, 7, 85, 256]))
@settings(max_examples=30, deadline=None)
def test_thirds_sum(updates: int, images: int) -> None:
    ledger = opened(str(updates), batch=images)
    for _ in range(3 * updates):
        ledger.charge("teacher", "forward", images)
    assert not pay(ledger, ("teacher", "forward", 1))
    assert ledger.remaining == ledger.remaining_updates() == 0.0
    assert ledger.spent_fraction() == pytest.approx(1.0)


def test_prices_of_the_images_list() -> None:
    ledger, price = opened("1e9"), {}
    for operation in get_args(Operation):
        before = ledger.spent
        assert pay(ledger, ("any", operation, 1))
        price[operation] = ledger.spent - before
    assert {price[name] for name in WITH_GRADIENT} == {1.0}
    assert [price[name] for name in FORWARD_ONLY] == pytest.approx([1 / 3] * 3)
    head = 2 * 768 * 100 / BASE.pass_flops(100)
    assert [price[name] for name in HEAD_ALONE] == pytest.approx([2 * head, head], rel=1e-6)
    assert set(price) == {*WITH_GRADIENT, *FORWARD_ONLY, *HEAD_ALONE}


@pytest.mark.parametrize("accounting", get_args(Accounting))
def test_items_tell_the_flops_in_both_lists(accounting: Accounting) -> None:
    ledger = opened("1e9", accounting)
    for operation in get_args(Operation):
        assert pay(ledger, ("any", operation, 8))
    for item in ledger.close().items:
        flops = BASE.flops(item.operation, 100, 25 if item.operation in PROMPTED else 0)  # type: ignore[arg-type]
        assert item.flops == 8 * flops
        if accounting == "flops" or item.operation in HEAD_ALONE:
            assert item.passes == pytest.approx(item.flops / BASE.pass_flops(100))


def test_flops_list_prices_the_known_ratios() -> None:
    ledger = opened("500", "flops")
    ledger.charge("labeled", "train", 256)
    ledger.charge("memory", "train", 256)
    assert ledger.spent == 512.0
    ledger.charge("unlabeled", "reconstruct", 256)
    assert ledger.spent / 768 == pytest.approx(0.852, abs=5e-4)
    spent = ledger.spent
    ledger.charge("memory", "forward", 256)
    ledger.charge("memory", "prompt", 256, prompts=40)
    assert (ledger.spent - spent) / 256 == pytest.approx(1.16, abs=0.005)


def test_solves_cost_their_flops_in_both_lists() -> None:
    for accounting in get_args(Accounting):
        ledger = opened("1", accounting, batch=4)
        ledger.charge_flops("solve", "ridge", 2.5 * BASE.pass_flops(100))
        assert ledger.spent == 2.5
        with pytest.raises(Overdraft):
            ledger.charge_flops("solve", "ridge", 2 * BASE.pass_flops(100))
        assert ledger.close().items == [Item("solve", "ridge", 0, 2.5, 2.5 * BASE.pass_flops(100))]


def test_flops_budget_buys_fewer_passes_with_a_wider_head() -> None:
    ledger = opened("2e15flops", classes=0)
    assert ledger.close().budget == pytest.approx(2e15 / BASE.encoder_pass)
    ledger.open(2, 10_000)
    assert ledger.remaining == pytest.approx(2e15 / (BASE.encoder_pass + 6 * 768 * 10_000))
    assert ledger.remaining_updates() == ledger.remaining / 1024


def test_nothing_is_carried_over() -> None:
    ledger = opened("2", batch=10)
    ledger.charge("memory", "train", 5)
    assert ledger.close().unused == 15
    ledger.open(2, 200)
    assert (ledger.spent, ledger.remaining) == (0.0, 20.0)
    assert [step["t"] for step in ledger.receipts()["steps"]] == [1]


def test_seconds_budget() -> None:
    clock = Clock()
    ledger = opened("90s", clock=clock)
    assert ledger.remaining_updates() == math.inf
    clock.now += 60
    ledger.charge("memory", "train", 10**9)
    assert ledger.spent_fraction() == pytest.approx(2 / 3)
    assert ledger.affords(10**12, seconds=30)
    assert not ledger.affords(1, seconds=30.1)
    with ledger.free():
        clock.now += 500
        assert ledger.elapsed == 60
    assert ledger.remaining_seconds == 30
    clock.now += 32
    with pytest.raises(Overdraft, match="s left"):
        ledger.charge("memory", "train", 1)
    receipt = ledger.close()
    assert (receipt.budget, receipt.spent, receipt.unused, receipt.passes) == (90, 92, 0, 1e9)
    assert ledger.receipts()["unit"] == "seconds"


def test_search_is_booked_apart_and_without_limit() -> None:
    ledger = opened("1", batch=10)
    ledger.charge("memory", "train", 10)
    ledger.book_search([Item("memory", "train", 50, 50.0, 5.0), Item("memory", "train", 3, 3.0, 7.0)])
    assert ledger.spent == 10
    assert [item.images for item in ledger.close().items] == [10]
    expected = {"purpose": "memory", "operation": "train", "images": 53, "passes": 53.0, "flops": 12.0}
    assert ledger.receipts()["search"] == [expected]


def test_evaluation_is_free_and_counted() -> None:
    ledger = opened("1", batch=10)
    ledger.charge("memory", "train", 10)
    with ledger.free():
        ledger.charge("whatever", "forward", 10_000)
    assert not ledger.affords(1)
    assert Item("evaluation", "forward", 10_000, 0.0, 0.0) in ledger.close().items


def test_receipts_are_plain_json() -> None:
    ledger = opened("2", batch=10)
    ledger.charge("memory", "train", 5)
    ledger.close()
    receipts = ledger.receipts()
    assert json.loads(json.dumps(receipts, allow_nan=False)) == receipts
    assert (receipts["accounting"], receipts["unit"]) == ("images", "passes")
    assert receipts["pass_flops"] == BASE.pass_flops(100)
    (step,) = receipts["steps"]
    assert (step["t"], step["budget"], step["spent"], step["unused"]) == (1, 20.0, 5.0, 15.0)
    flops = 5 * BASE.pass_flops(100)
    assert step["items"] == [{"purpose": "memory", "operation": "train", "images": 5, "passes": 5.0, "flops": flops}]


@given(st.lists(charges, max_size=30), st.integers(0, 30), accountings)
@settings(deadline=None)
def test_state_goes_on_amid_a_time_step(wishes: list[tuple[str, str, float]], cut: int, accounting: Accounting) -> None:
    ledger = opened("3", accounting, batch=100)
    ledger.charge("memory", "train", 1)
    ledger.close()
    ledger.open(2, 120)
    ledger.book_search([Item("threshold", "forward", 7, 7 / 3, 2.0)])
    for wish in wishes[:cut]:
        pay(ledger, wish)
    resumed = Ledger(ledger.budget, accounting, 100, BASE)
    resumed.load_state(json.loads(json.dumps(ledger.state(), allow_nan=False)))
    assert resumed.state() == ledger.state()
    for wish in wishes[cut:]:
        assert pay(resumed, wish) == pay(ledger, wish)
    assert resumed.close() == ledger.close()
    assert resumed.receipts() == ledger.receipts()
    assert resumed.state() == ledger.state()


def test_state_keeps_the_time_spent() -> None:
    clock = Clock()
    ledger = opened("90s", clock=clock)
    clock.now += 40
    resumed = Ledger(ledger.budget, "images", 1024, BASE, clock=Clock())
    resumed.load_state(ledger.state())
    assert resumed.remaining_seconds == 50


def test_allotments_split_a_time_step() -> None:
    ledger = opened("500")
    joint = ledger.allot(updates=400)
    fractions = []
    while ledger.affords(1024, within=joint):
        fractions.append(ledger.spent_fraction(joint))
        ledger.charge("joint", "train", 1024)
    assert fractions == [update / 400 for update in range(400)]
    assert ledger.spent_fraction(joint) == 1.0
    balance = ledger.allot()
    assert (balance.passes, balance.seconds, ledger.spent_fraction(balance)) == (100 * 1024, math.inf, 0.0)
    assert ledger.allot(share=0.8).passes == pytest.approx(80 * 1024)
    assert ledger.allot(updates=1000).passes == 100 * 1024
    nothing = ledger.allot(share=0.0)
    assert (ledger.spent_fraction(nothing), ledger.affords(1, within=nothing)) == (1.0, False)


def test_allotment_obeys_the_ledger_too() -> None:
    ledger = opened("10", batch=10)
    first, second = ledger.allot(), ledger.allot(share=0.5)
    ledger.charge("memory", "train", 60)
    assert (ledger.spent_fraction(first), ledger.spent_fraction(second)) == (0.6, 1.0)
    assert ledger.affords(40, within=first)
    assert not ledger.affords(41, within=first)
    assert not ledger.affords(1, within=second)


def test_allotment_of_time_and_updates() -> None:
    clock = Clock()
    ledger = opened("100s", batch=10, clock=clock)
    clock.now += 20
    half = ledger.allot(share=0.5, updates=4)
    assert (half.passes, half.seconds) == (40, 40)
    clock.now += 10
    ledger.charge("memory", "train", 20)
    assert ledger.spent_fraction(half) == 0.5
    clock.now += 20
    assert ledger.spent_fraction(half) == 0.75
    assert ledger.affords(20, seconds=10, within=half)
    assert not ledger.affords(20, seconds=10.1, within=half)
    assert not ledger.affords(21, seconds=10, within=half)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 20)), max_size=6), st.sampled_from(["forward", "train"]))
@settings(deadline=None)
def test_allotments_are_never_exceeded(parts: list[tuple[float, float]], operation: Operation) -> None:
    ledger = opened("20", batch=16)
    price = 1.0 if operation == "train" else 1 / 3
    for share, updates in parts:
        before = ledger.spent
        allotment = ledger.allot(share, updates)
        while ledger.affords(16 * price, within=allotment):
            assert 0 <= ledger.spent_fraction(allotment) < 1
            ledger.charge("memory", operation, 16)
        assert ledger.spent - before <= min(share * (320 - before), updates * 16) * (1 + 1e-9)
        assert 0 <= ledger.spent_fraction(allotment) <= 1
    assert ledger.close().spent <= 320 * (1 + 1e-9)


def test_misuse_is_told_apart_from_an_overdraft() -> None:
    ledger = Ledger(Budget(1, "updates"), "images", 10, BASE)
    calls: list[Callable[[], object]] = [
        lambda: ledger.charge("memory", "train", 1),
        lambda: ledger.charge_flops("solve", "ridge", 1.0),
        lambda: ledger.affords(1),
        ledger.allot,
        ledger.close,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="open"):
            call()
    ledger.open(1, 10)
    with pytest.raises(RuntimeError, match="still open"):
        ledger.open(2, 10)
    with ledger.free(), pytest.raises(RuntimeError, match="inside"):
        ledger.close()
    with pytest.raises(ValueError, match="negative"):
        ledger.charge("memory", "train", -1)
    with pytest.raises(ValueError, match="negative"):
        ledger.charge_flops("solve", "ridge", math.nan)
    with pytest.raises(ValueError, match="operation"):
        ledger.charge("memory", "guess", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prompt"):
        ledger.charge("memory", "prompt", 1)
    assert ledger.close().items == []
