"""The one error type for mistakes a user can mend: the command line prints its message and no trace-back."""


class OrdnetError(ValueError):
    """Says what came, what was expected, and what to do."""

    exit_code = 1
    """What the command line ends with."""
