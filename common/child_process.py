"""Runs a function in a child process to free its memory afterwards.

    sums = in_child(replay, speculator_dir, target_dir, store, rows, depth=4)

An engine takes nine tenths of a GPU's memory when it starts, so the process that opens it must not
hold GPU memory: weights, CUDA's context and torch's cache are freed only when their process ends.
Work on a device, even on a CPU, therefore runs in a child.

Children are forked in 0.1 s from a server process that has imported only torch; a fresh interpreter
takes 4 to 8 s to import it. The server never uses a device, because CUDA does not work in a fork of
a process that has used it. The server ends with the process that started it.

The function is imported by name in the child. Arguments and result are pickled.
"""

import multiprocessing
import pickle
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

from outrider.common.errors import OutriderError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_CONTEXT = multiprocessing.get_context("forkserver")
# torch imports torch._dynamo (1.5 s) when a module is first created on the meta device.
_CONTEXT.set_forkserver_preload(["torch", "torch._dynamo"])


class ChildError(RuntimeError):
    """An unexpected error in a child process; `__cause__` is the original error.

    The message lists the child's stack frames without values, because those may be customer text.
    """


def in_child(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Returns `function(*args, **kwargs)`, computed in a child process.

    Raises the child's `OutriderError` unchanged, any other error as a `ChildError`, and an
    `OutriderError` if the child was killed. Ctrl-C or SIGTERM in this process ends the child.
    """
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    # Plain pickle: torch's pickler shares tensors by descriptor, so the sender must stay alive.
    process = _CONTEXT.Process(target=_work, args=(sender, pickle.dumps((function, args, kwargs))))
    process.start()
    sender.close()
    try:
        answer = receiver.recv_bytes()
    except EOFError:
        process.join()
        raise OutriderError(
            f"the child process of {function.__name__} ended with exit status {process.exitcode}"
            " before it returned a result (-9: killed, most often because memory ran out; the"
            " kernel's log names killed processes)"
        ) from None
    finally:
        receiver.close()
        process.kill()
        process.join()
    return unpickle_answer(answer, f"the child process of {function.__name__}")


def pickle_answer(work: Callable[[], object]) -> bytes:
    """Pickles the result or error of `work`, for `unpickle_answer` in another process.

    An error carries its stack frames without values, so that the computing process logs no customer
    text.
    """
    try:
        return pickle.dumps((work(), None, None))
    except Exception as error:
        frames = "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__
        error.__traceback__ = error.__context__ = error.__cause__ = None
        try:
            answer = pickle.dumps((None, error, frames))
            pickle.loads(answer)  # some exceptions can be pickled but not unpickled
        except Exception:
            return pickle.dumps((None, None, frames))
        return answer


def unpickle_answer(answer: bytes, where: str) -> Any:
    """Returns the result in `answer`, or raises the error in it.

    The message of a `ChildError` names `where` the error occurred.
    """
    result, error, frames = pickle.loads(answer)
    if isinstance(error, OutriderError):
        raise error
    if frames is not None:
        raise ChildError(f"in {where}:\n{frames}") from error
    return result


def _work(sender: Connection, work: bytes) -> None:
    def call() -> object:
        function, args, kwargs = pickle.loads(work)
        return function(*args, **kwargs)

    sender.send_bytes(pickle_answer(call))
