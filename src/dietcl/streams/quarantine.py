"""The quarantine: a table of everything that could not be used, with its file, its row and one sentence."""

import csv
from collections import Counter
from pathlib import Path

QUARANTINE = "quarantine.csv"


class Quarantine:
    """Writes the table as problems are found, and counts them by kind."""

    def __init__(self, path: Path) -> None:
        self.kinds: Counter[str] = Counter()
        self._file = path.open("w", newline="", encoding="utf-8", errors="backslashreplace")
        self._table = csv.writer(self._file)
        self._table.writerow(["file", "row", "problem"])

    def add(self, file: str, row: int | None, sentence: str) -> None:
        """Add one problem; a problem with an entire file has no row."""
        self.kinds[kind_of(sentence)] += 1
        self._table.writerow([file, "" if row is None else row, sentence])

    def close(self) -> None:
        """Finish the table."""
        self._file.close()


def kind_of(sentence: str) -> str:
    """Return the sentence on a problem without its details."""
    return sentence.partition(":")[0].partition("(")[0].strip()
