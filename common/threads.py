"""Work in a thread that ends with the process.

    future = in_daemon_thread(read, path)
    future.result()

The threads of concurrent.futures are waited for when the process ends, also after Ctrl-C and also
where a read from a network disk hangs.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def in_daemon_thread(
    work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Future[Result]:
    """The result of `work(*args, **kwargs)`, or its error where the result is read."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
