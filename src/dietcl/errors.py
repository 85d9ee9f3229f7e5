"""The one exception for what a user can mend."""


class UserError(Exception):
    """One sentence that names the file, row or option at fault and what to do; the CLI exits with 2 on it."""
