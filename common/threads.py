"""Runs work in a thread that ends with the process.

    future = in_daemon_thread(read, path)
    future.result()

At exit, Python waits for threads of concurrent.futures, even after Ctrl-C and even if a read from a
network disk hangs.
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
    """Starts `work(*args, **kwargs)`; the future returns its result or raises its error."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
