"""Tables of an experiment, for the terminal and for Markdown."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rich.table import Table
from rich.text import Text

from dietcl import UserError
from dietcl.files import write_bytes


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
            table.add_column(Text(name), justify="right" if place else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def markdown(self) -> str:
        """Return the sheet as Markdown."""
        rule = ["---", *["---:"] * (len(self.header) - 1)]
        lines = [f"| {' | '.join(cells)} |" for cells in (self.header, rule, *self.rows)]
        return "\n".join([self.title, "", *lines, ""])

    def latex(self) -> str:
        """Return the sheet as a LaTeX table, for booktabs."""
        lines = [" & ".join(map(_escaped, cells)) + r" \\" for cells in (self.header, *self.rows)]
        columns = "l" + "r" * (len(self.header) - 1)
        begin = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped(self.title)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
        ]
        body = [r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
        return "\n".join([*begin, *body, r"\end{tabular}", r"\end{table}", ""])

    def html(self) -> str:
        """Return the sheet as an HTML table under its title."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.header)
        rows = "".join(
            f"<tr><th>{escape(name)}</th>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
            for name, *cells in self.rows
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        return f'<p class="intro">{escape(self.title)}</p><div class="card scroll">{table}</div>'


_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "Σ": r"$\Sigma$",
    "α": r"$\alpha$",
    "–": "--",
    "\\": r"\textbackslash{}",
}


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)


def marks(name: str) -> tuple[str, str]:
    """Return the lines of a Markdown file between which a command puts its tables."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def put_between(path: Path, blocks: Mapping[str, str]) -> None:
    """Replace the text between marks in a Markdown file, by their names; all of it or nothing."""
    if path.is_dir():
        raise UserError(f"--write {path}: is a folder; give a Markdown file")
    if not path.is_file():
        lines = " and ".join(line for name in blocks for line in marks(name))
        raise UserError(f"--write {path}: no such file; give a Markdown file with the lines {lines}")
    text = path.read_text(encoding="utf-8")
    for name, block in blocks.items():
        begin, end = marks(name)
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise UserError(f"{path}: has no lines {begin} and {end} to put the table between")
        text = f"{before}{begin}\n{block}{end}{after}"
    write_bytes(path, text.encode())
