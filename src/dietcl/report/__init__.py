"""Run folders -> tables, PNG figures and one self-contained HTML page."""
