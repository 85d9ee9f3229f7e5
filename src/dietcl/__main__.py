"""`python -m dietcl` is `dietcl`."""

from dietcl.cli.main import run

run()
