"""The traceback of an unexpected error, without what it may quote of the customer's text.

print(traceback_of(error, quoting=recipe.report.samples))

`ValueError: could not convert 'Ada Lovelace, born 1815'` belongs in no log. What the operating system, the memory, a missing
module or a device says is about the machine, and stays.
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
    """As Python prints it; unless `quoting`, with the messages only of errors that are about the machine."""
    if quoting:
        return "".join(traceback.format_exception(error))
    told = []
    link: BaseException | None = error
    while link is not None:
        message = str(link) if isinstance(link, ABOUT_THE_MACHINE) else WITHHELD
        frames = "".join(traceback.format_tb(link.__traceback__))
        told.append(
            f"Traceback (most recent call last):\n{frames}{type(link).__name__}: {message}\n"
        )
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\nfrom which came:\n\n".join(reversed(told))
