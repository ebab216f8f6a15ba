"""The base class of all errors that a user can fix."""


class OutriderError(Exception):
    """A user's mistake or a limit of the machine, with a message that names the fix.

    The commands print the message without a traceback and exit with `exit_code`.
    """

    exit_code = 1
