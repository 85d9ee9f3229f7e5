"""The one exception for what a user can mend."""


class UserError(Exception):
    """One sentence that names the file, row or option at fault and what to do; the CLI exits with 2 on it."""


def reason(error: Exception) -> str:
    """Say in one line why something failed."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip().partition("\n")[0]
