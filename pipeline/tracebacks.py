"""Tracebacks of unexpected errors, without messages that may quote customer text.

print(traceback_of(error, quoting=recipe.report.samples))

A message such as `ValueError: could not convert 'Ada Lovelace, born 1815'` must not be logged.
Messages about the operating system, memory, missing modules and devices are kept.
"""

import subprocess
import traceback

ABOUT_THE_MACHINE = (
    OSError,
    MemoryError,
    ImportError,
    RuntimeError,
    AssertionError,
    subprocess.SubprocessError,
)
WITHHELD = "(message withheld, it may quote the traffic; report.samples=true shows it)"


def traceback_of(error: BaseException, quoting: bool) -> str:
    """The traceback as Python prints it; unless `quoting`, without messages that may hold text."""
    if quoting:
        return "".join(traceback.format_exception(error))
    parts = []
    link: BaseException | None = error
    while link is not None:
        message = str(link) if isinstance(link, ABOUT_THE_MACHINE) else WITHHELD
        frames = "".join(traceback.format_tb(link.__traceback__))
        parts.append(
            f"Traceback (most recent call last):\n{frames}{type(link).__name__}: {message}\n"
        )
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\nfollowed by:\n\n".join(reversed(parts))
