"""The desk in a Ray actor: how the process that captures and the ranks reach it.

    desk, facts = start_desk(name, Desk arguments)      # in the process that captures
    desk, fetch = connect(facts)                        # in a rank, on any node of the cluster

States do not pass through the actor. A rank gets a reference, and Ray moves the object from the
store of the node that captured it to that of the rank's node.
"""

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from outrider.common.errors import OutriderError
from outrider.data.features.piece_stream import lost_object
from outrider.data.features.replica_slot import ended_why
from outrider.data.streaming.desk import Desk, Place, StreamMarks, Taken, Work

SPARE_THREADS = 8
"""Of the actor, besides two of each rank that wait for states and for verdicts."""
NAMESPACE = "outrider"


class Lost(Exception):
    """The object of a piece is gone; it must be captured again."""


class CapturedStates(Protocol):
    """One sequence of a captured piece."""

    @property
    def row_id(self) -> str:
        """The sequence."""

    @property
    def states(self) -> Mapping[str, Any]:
        """numpy int16 [T, H] of each stream: bfloat16 bits."""


Fetch = Callable[[Any], Sequence[CapturedStates]]
"""From a piece's reference to its sequences. Raises `Lost`."""


class RemoteDesk:
    """A desk in another process, with the same methods."""

    def __init__(self, actor: Any):
        self._actor = actor

    def begin(self, places: Sequence[Place]) -> int:
        return self._call("begin", list(places))

    def take(self, number: int, position: int) -> Taken:
        return self._call("take", number, position)

    def done(self, number: int, position: int) -> None:
        self._actor.done.remote(number, position)

    def lost(self, number: int, position: int, payload: Any) -> None:
        self._call("lost", number, position, payload)

    def off_policy(self, number: int, positions: Sequence[int]) -> Taken:
        return self._call("off_policy", number, list(positions))

    def work(self, known: int) -> Work | None:
        return self._call("work", known)

    def room(self, revision: int) -> bool | None:
        return self._call("room", revision)

    def put(self, revision: int, name: int, payload: Any, off: Mapping[str, bool]) -> bool:
        return self._call("put", revision, name, payload, dict(off))

    def fail(self, message: str) -> None:
        self._call("fail", message)

    def close(self) -> None:
        self._call("close")

    def marks(self) -> StreamMarks:
        return self._call("marks")

    def _call(self, method: str, *arguments: Any) -> Any:
        import ray

        try:
            return ray.get(getattr(self._actor, method).remote(*arguments))
        except ray.exceptions.RayActorError as error:
            raise _ended(ended_why(error)) from None
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (
                OutriderError(str(cause)) if isinstance(cause, OutriderError) else cause
            ) from None


def start_desk(
    ranks: int,
    piece_of: Mapping[str, int],
    piece_bytes: Sequence[int],
    limit_bytes: int,
    cache_bytes: int,
) -> tuple[RemoteDesk, dict[str, str]]:
    """Starts the desk on this node, and returns it with what `connect` needs."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    context = ray.get_runtime_context()
    name = f"desk-{uuid.uuid4().hex}"
    here = NodeAffinitySchedulingStrategy(context.get_node_id(), soft=False)
    actor = (
        ray.remote(Desk)
        .options(
            name=name,
            namespace=NAMESPACE,
            num_cpus=0,
            max_concurrency=2 * ranks + SPARE_THREADS,
            scheduling_strategy=here,
        )
        .remote(dict(piece_of), list(piece_bytes), limit_bytes, cache_bytes)
    )
    facts = {"address": context.gcs_address, "namespace": NAMESPACE, "desk": name}
    return RemoteDesk(actor), facts


def connect(facts: Mapping[str, Any]) -> tuple[RemoteDesk, Fetch]:
    """The desk, and what reads a piece, in a process on a node of the cluster."""
    import ray

    if not ray.is_initialized():
        ray.init(address=facts["address"], log_to_driver=False, logging_level=logging.ERROR)
    try:
        actor = ray.get_actor(facts["desk"], namespace=facts["namespace"])
    except ValueError:
        raise _ended("its desk is gone") from None
    return RemoteDesk(actor), _fetch


def _ended(why: str) -> OutriderError:
    return OutriderError(
        f"the process that captures has ended ({why}), and with it the stream of states; rerun the"
        " command to resume"
    )


def _fetch(payload: Any) -> Sequence[CapturedStates]:
    import ray

    try:
        return ray.get(payload[0])
    except ray.exceptions.RayError as error:
        if not lost_object(error):
            raise
        raise Lost(type(error).__name__) from error
