"""The quarantine: a table of everything that could not be used, with its file, its row there and one sentence."""

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

    def __enter__(self) -> "Quarantine":
        return self

    def add(self, file: str, row: int | None, sentence: str) -> None:
        """Write down one problem; a file that is all there is has no row."""
        self.kinds[kind_of(sentence)] += 1
        self._table.writerow([file, "" if row is None else row, sentence])

    def close(self) -> None:
        """Make the table whole."""
        self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def kind_of(sentence: str) -> str:
    """Return what a sentence on a problem says before its particulars."""
    return sentence.partition(":")[0].partition("(")[0].strip()
