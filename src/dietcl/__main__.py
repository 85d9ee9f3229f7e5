"""`python -m dietcl` is `dietcl`."""

from dietcl.cli import main

raise SystemExit(main())
