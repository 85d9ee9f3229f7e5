"""The one exception for what a user can mend."""


class UserError(Exception):
    """One sentence that names the file, row or option at fault and what to do; the CLI exits with 2 on it."""


class NotFinite(Exception):
    """A loss or a weight became infinite or not a number; the sentence says where."""


class Lost(Exception):
    """Another process of the run ended; its own output has the reason."""


class Stopped(Exception):
    """A run was asked to stop, and did after it had saved itself."""


def reason(error: Exception) -> str:
    """Say in one line why something failed."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip().partition("\n")[0]
