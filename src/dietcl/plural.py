"""Counts with their nouns in messages."""


def plural(count: int, noun: str) -> str:
    """Return a count with its noun in the right number: 1 class, 2,000 classes."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith(('s', 'x', 'ch')) else 's'}"
