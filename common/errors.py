"""The one error that a user sees: a clear message with the file, the key, the value and the fix, and no traceback.

Here, at the bottom of the house, because every folder raises it and imports only from those below.
"""


class OutriderError(Exception):
    """A user's mistake or a limit of the machine; the commands print the message alone and exit with `exit_code`."""

    exit_code = 1
