"""Actors: objects that live in processes of the cluster, and calls of their methods.

    with start_actors(Counter, start, ["one", "two"], placement) as (_, actors):
        calls = [actor.call(Counter.add, 5) for actor in actors.values()]
        for call in wait_for_any(calls, timeout_s=1.0):
            print(call.result())

If an actor's process or node ends, the cluster starts the actor again on any node with room, at
most `Placement.restarts` times. Any process in the cluster may find the actors by their namespace.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from outrider.common.cluster.session import connect
from outrider.common.errors import OutriderError

Instance = TypeVar("Instance")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class CallFailed(Exception):
    """A call that ended without a result; the text is the cause, in one line."""


class ActorLost(CallFailed):
    """The actor's process or node ended."""


class ResultLost(CallFailed):
    """The result was lost with the object store that held it."""


class StoreFull(CallFailed):
    """The result did not fit into the node's object store."""


@dataclass(frozen=True)
class Placement:
    """Where actors run: what one of them reserves on its node, and how it is kept running."""

    cpus: int
    gpus: int
    concurrent_calls: int
    """Number of calls that an actor runs at a time, each in a thread."""
    restarts: int
    """Maximum number of times that an actor is started again after its process ended."""


class Call(Generic[Result]):
    """A running call of an actor's method; the result is kept as long as this object."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def result(self) -> Result:
        """Waits for the end of the call; returns a copy of its result.

        Raises:
            OutriderError: The method raised it.
            CallFailed: Any other error of the method, or one of the classes above.
        """
        import ray

        try:
            value: Result = ray.get(self._reference)
        except ray.exceptions.RayError as error:
            raise _failure(error) from error
        return value


class Actor(Generic[Instance]):
    """An actor of a class, in this or another process of the cluster."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def call(
        self,
        method: Callable[Concatenate[Instance, Arguments], Result],
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Call[Result]:
        """Calls a method of the class, again after each restart of the actor."""
        return Call(getattr(self._handle, method.__name__).remote(*arguments, **keywords))

    def call_once(
        self,
        method: Callable[Concatenate[Instance, Arguments], Result],
        *arguments: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Call[Result]:
        """Like `call`, but the call fails if the actor is lost, without waiting for a restart."""
        once = getattr(self._handle, method.__name__).options(max_task_retries=0)
        return Call(once.remote(*arguments, **keywords))

    def restart(self) -> None:
        """Ends the actor's process; the cluster starts it again, as after a loss."""
        import ray

        ray.kill(self._handle, no_restart=False)

    def close(self) -> None:
        """Ends the actor."""
        import ray

        ray.kill(self._handle)


@contextlib.contextmanager
def start_actors(
    class_: type[Instance], argument: object, names: Sequence[str], placement: Placement
) -> Iterator[tuple[str, dict[str, Actor[Instance]]]]:
    """Starts an actor `class_(argument)` for each name, and finally ends them.

    Yields their namespace and the actors by name; they may still be waiting for room.
    """
    import ray

    remote: Any = ray.remote(num_cpus=placement.cpus, num_gpus=placement.gpus)(class_)
    namespace = f"outrider-{uuid.uuid4().hex}"
    actors: dict[str, Actor[Instance]] = {}
    for name in names:
        options = remote.options(
            name=name,
            namespace=namespace,
            max_concurrency=placement.concurrent_calls,
            max_restarts=placement.restarts,
            max_task_retries=-1,
        )
        actors[name] = Actor(options.remote(argument))
    try:
        yield namespace, actors
    finally:
        for actor in actors.values():
            actor.close()


def find_actors(address: str, namespace: str, names: Sequence[str]) -> dict[str, Actor[Any]]:
    """Finds actors of another process; connects to their cluster if this process is not connected.

    Raises:
        LookupError: An actor has ended.
    """
    import ray

    if not ray.is_initialized():
        connect({"address": address})
    try:
        return {name: Actor(ray.get_actor(name, namespace=namespace)) for name in names}
    except ValueError as error:
        raise LookupError(f"{namespace}: an actor has ended") from error


def wait_for_any(calls: Sequence[Call[Any]], timeout_s: float) -> list[Call[Any]]:
    """Waits until a call has ended, at most `timeout_s`; returns all calls that have."""
    import ray

    call_of = {call._reference: call for call in calls}
    references = list(call_of)
    ray.wait(references, timeout=timeout_s)
    ended, _ = ray.wait(references, num_returns=len(references), timeout=0)
    return [call_of[reference] for reference in ended]


def _failure(error: Exception) -> Exception:
    """Returns Ray's error as one of this module; an `OutriderError` of the method as it is."""
    from ray.exceptions import ObjectLostError, ObjectStoreFullError, RayActorError

    cause = getattr(error, "cause", None) or error
    if isinstance(cause, OutriderError):
        return cause
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or [""]
    # The last line, because Ray writes tracebacks into its texts.
    text = f"{type(cause).__name__}: {lines[-1][:200]}"
    if isinstance(cause, ObjectStoreFullError):
        return StoreFull(text)
    if isinstance(error, ObjectLostError):
        return ResultLost(text)
    if isinstance(error, RayActorError):
        return ActorLost(text)
    return CallFailed(text)
