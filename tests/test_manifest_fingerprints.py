"""Fingerprints of strings: equal for equal strings and for no others, whatever lies around them in memory."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dietcl.streams.manifest import fingerprints

WORDS = ("", "a", "aa", "\0", "\0\0", "é", "日本", "🙂", "\x7f", "x" * 7, "x" * 8, "x" * 9)
# Strings of few letters often are equal, or differ in one place or in their length alone.
TEXTS = st.one_of(
    st.text(max_size=40),
    st.text("ab\0", max_size=26),
    st.builds(str.__mul__, st.sampled_from("a\0é"), st.integers(0, 40)),
    st.sampled_from(WORDS),
)


def prints(strings: list[str], kind: pa.DataType | None = None) -> list[int]:
    """The fingerprints as plain numbers."""
    found = fingerprints(pa.array(strings, kind or pa.string()))
    assert found.shape == (len(strings),)
    return [int(value) for value in found]


@given(st.lists(TEXTS, max_size=30), st.sampled_from([pa.string(), pa.large_string(), pa.string_view()]))
@example(["", ""], pa.string())
@example([], pa.large_string())
@example(["\0" * n for n in range(41)], pa.string())  # they differ in length alone
@example(["a" * n + "\0" for n in range(41)] + ["a" * n for n in range(41)], pa.string())
@settings(max_examples=300, deadline=None)
def test_equal_exactly_where_the_strings_are(strings: list[str], kind: pa.DataType) -> None:
    found = prints(strings, kind)
    number: dict[str, int] = {}
    for string, value in zip(strings, found, strict=True):
        assert number.setdefault(string, value) == value
    assert len(set(number.values())) == len(number)


@pytest.mark.parametrize("length", range(41))
def test_every_byte_of_every_length_counts(length: int) -> None:
    base = "m" * length
    changed = [base[:i] + letter + base[i + 1 :] for i in range(length) for letter in "\0nM\x7f"]
    swapped = ["".join(sorted(base[:i] + "k" + base[i + 1 :])) for i in range(length)]
    family = {base, base + "\0", base + "m", "\0" + base, *changed, *swapped}
    assert len(set(prints(sorted(family)))) == len(family)


@given(st.lists(TEXTS, min_size=1, max_size=8), st.lists(TEXTS, max_size=4), st.lists(TEXTS, max_size=4))
@settings(max_examples=200, deadline=None)
def test_neither_neighbours_nor_the_position_matter(strings: list[str], before: list[str], after: list[str]) -> None:
    alone = [prints([string])[0] for string in strings]
    assert prints(strings) == alone
    for kind in (pa.string(), pa.large_string()):
        whole = pa.array([*before, *strings, *after], kind)
        inside = whole.slice(len(before), len(strings))
        assert inside.offset == len(before)
        assert fingerprints(inside).tolist() == alone
        assert fingerprints(inside.slice(len(strings) - 1)).tolist() == alone[-1:]
        assert fingerprints(inside.slice(len(strings))).tolist() == []


def forms(count: int) -> dict[str, pa.Array]:
    """Ids as they come: counters, paths, days, hexadecimal numbers, addresses."""
    numbers = pa.array(range(count))
    digits = numbers.cast(pa.string())
    padded = pc.utf8_lpad(digits, 9, "0")
    thousands = pc.utf8_lpad(pc.divide(numbers, 1000).cast(pa.string()), 4, "0")
    rest = pc.utf8_lpad(pc.subtract(numbers, pc.multiply(pc.divide(numbers, 1000), 1000)).cast(pa.string()), 3, "0")
    hexadecimal = pa.array([f"{i * 2654435761 % 2**32:08x}" for i in range(count)])
    return {
        "counters": digits,
        "padded": padded,
        "named": pc.binary_join_element_wise("img_", padded, ".jpg", ""),
        "folders": pc.binary_join_element_wise("train/n", thousands, "/", rest, ".JPEG", ""),
        "class in the name": pc.binary_join_element_wise("n", thousands, "/n", thousands, "_", digits, ".JPEG", ""),
        "two ends": pc.binary_join_element_wise(thousands, "xxxx", rest, ""),
        "twice": pc.binary_join_element_wise(padded, padded, ""),
        "hexadecimal": hexadecimal,
        "hexadecimal twice": pc.binary_join_element_wise(hexadecimal, hexadecimal, ""),
        "address": pc.binary_join_element_wise("https://example.org/photos/", digits, "?size=large", ""),
    }


def test_no_two_of_a_million_ids_share_one() -> None:
    every = pa.chunked_array(list(forms(120_000).values())).combine_chunks()
    every = every if isinstance(every, pa.Array) else every.chunk(0)
    assert len(every) >= 1_000_000
    assert pc.count_distinct(every).as_py() == pc.count_distinct(pa.array(fingerprints(every))).as_py()
