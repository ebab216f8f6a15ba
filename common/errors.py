"""The base class of all errors that a user can fix."""

from outrider.common.redaction import without_credentials


class OutriderError(Exception):
    """A user's mistake or a machine limit; the message names the fix.

    The commands print the message without a traceback and exit with `exit_code`. Messages quote
    URLs and are logged, so credentials in URLs are removed here.
    """

    exit_code = 1

    def __init__(self, *message: object, exit_code: int | None = None) -> None:
        super().__init__(*map(without_credentials, map(str, message)))
        self.exit_code = exit_code or self.exit_code


class UsageError(OutriderError):
    """An invalid command line."""

    exit_code = 2
