"""Run folders -> tables, PNG figures and one self-contained HTML page."""

from dietcl.report.page import write_report
from dietcl.report.runs import Run, read_run, read_runs
from dietcl.report.tables import comparison_rows, comparison_table, cost_table, paired_rows

__all__ = [
    "Run",
    "comparison_rows",
    "comparison_table",
    "cost_table",
    "paired_rows",
    "read_run",
    "read_runs",
    "write_report",
]
