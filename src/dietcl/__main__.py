"""`python -m dietcl` is `dietcl`."""

from dietcl.cli.main import main

raise SystemExit(main())
