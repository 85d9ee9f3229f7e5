"""Tables of an experiment, for the terminal and for Markdown."""

from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from dietcl.errors import UserError


@dataclass(frozen=True)
class Sheet:
    """A titled table of text; the first column names the row."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def table(self) -> Table:
        """Return the sheet for the terminal."""
        table = Table(title=Text(self.title), box=None, title_justify="left", padding=(0, 2, 0, 0))
        for place, name in enumerate(self.header):
            table.add_column(Text(name), justify="right" if place else "left")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def markdown(self) -> str:
        """Return the sheet as Markdown."""
        rule = ["---", *["---:"] * (len(self.header) - 1)]
        lines = [f"| {' | '.join(cells)} |" for cells in (self.header, rule, *self.rows)]
        return "\n".join([self.title, "", *lines, ""])


def marks(name: str) -> tuple[str, str]:
    """Return the lines of a Markdown file between which a command puts its tables."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def put_between(path: Path, name: str, text: str) -> None:
    """Replace what stands between the marks of this name in a Markdown file."""
    begin, end = marks(name)
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise UserError(f"{path}: has no lines {begin} and {end} to put the table between")
    path.write_text(f"{before}{begin}\n{text}{end}{after}", encoding="utf-8")
