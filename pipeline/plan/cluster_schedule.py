"""The schedule of a recipe on a cluster, for `train-speculator --dry-run cluster.address=...`.

    cluster_schedule(tokens, recipe, target_config)    # one JSON object; None without a cluster

A formula over the rates of the recipe, once for stored and once for streamed features. What is
slowest sets the pace of capture (replicas, network, store) and of training (reading, steps). Stored
training follows capture; streamed training starts with its first window of pieces and takes the
longer of capture and training. The bottleneck is the part whose doubling saves most of the time
until training ends. Nothing waits for room: the schedule says how much that takes in flight.
"""

import dataclasses
import math
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

from outrider.data.config import bytes_per_token
from outrider.pipeline.plan.estimates import capture_cost, training_cost
from outrider.pipeline.recipe.recipe import Recipe
from outrider.speculators.planned import stored_features
from outrider.training.config import STREAMED_WINDOW

GB = 1e9

NO_GAIN = 1.01
"""A run that is at most 1 % longer counts as not longer."""

HELD_PIECES = 3
"""Pieces in flight for each replica: being captured, waiting, being read."""


class Times(NamedTuple):
    """Seconds from the start of the run."""

    first_step_s: float
    capture_s: float
    """End of the last capture."""
    training_s: float
    """End of training."""


@dataclasses.dataclass(frozen=True)
class ClusterPlan:
    """Work and rates of one run; times in seconds, sizes in bytes."""

    replicas: int
    streamed: bool
    trained_tokens: int
    """Of one epoch."""
    other_tokens: int
    """Validation and held-out part, which are stored in both ways."""
    epochs: int
    piece_tokens: int
    """Most tokens that a replica captures at once."""
    window_tokens: int
    """Tokens that streamed training mixes; it holds them until the window ends."""
    capture_tokens_per_s: float
    """Of one replica."""
    training_tokens_per_s: float
    """Of all training workers together."""
    bytes_per_token: float
    """In memory and over the network."""
    stored_bytes_per_token: float
    network_bytes_per_s: float = math.inf
    """Into the consumer: the node of the command, or all training nodes together."""
    write_bytes_per_s: float = math.inf
    read_bytes_per_s: float = math.inf
    replica_start_s: float = 0.0
    training_start_s: float = 0.0
    cache_bytes: float = 0.0
    """Streamed: states that stay in memory for further epochs."""

    def times(self) -> Times:
        """When each part ends."""
        tokens, rate = self.trained_tokens, self.training_tokens_per_s
        stored = self.other_tokens + (0 if self.streamed else tokens)
        stored_s = self.replica_start_s + self._captured_s(stored, self._write) if stored else 0.0
        if not self.streamed:
            first_s = stored_s + self.training_start_s
            rate = min(rate, self.read_bytes_per_s / self.stored_bytes_per_token)
            return Times(first_s, stored_s, first_s + self.epochs * tokens / rate)
        ready_s = stored_s + self.replica_start_s  # replicas start again for the stream
        window = min(self.window_tokens, tokens)
        first_s = max(ready_s + self._captured_s(window), stored_s + self.training_start_s)
        # While training starts, replicas capture what may be in flight, and then wait.
        begin_s = max(ready_s, first_s - self._captured_s(min(self.in_flight_tokens, tokens)))
        captured, capture_s, training_s = 0.0, ready_s, first_s
        for share in [1.0] + [self.again] * (self.epochs - 1):
            captured += share * tokens
            limited_s = begin_s + self._captured_s(captured) + window / rate
            training_s = max(limited_s, training_s + tokens / rate)
            capture_s = training_s - window / rate if share else capture_s
        return Times(first_s, capture_s, training_s)

    def _captured_s(self, tokens: float, write_tokens_per_s: float = math.inf) -> float:
        """Time until the consumer has them: one piece through all, the rest at the slowest."""
        pieces = max(1, math.ceil(tokens / self.piece_tokens))
        carried = self.network_bytes_per_s / self.bytes_per_token
        rounds = math.ceil(pieces / self.replicas)
        shares = 1 / self.capture_tokens_per_s, 1 / carried, 1 / write_tokens_per_s
        more = (rounds - 1) * shares[0], (pieces - 1) * shares[1], (pieces - 1) * shares[2]
        return tokens / pieces * (sum(shares) + max(more))

    @property
    def _write(self) -> float:
        return self.write_bytes_per_s / self.stored_bytes_per_token

    @property
    def again(self) -> float:
        """Share of the training part that is captured again in each epoch after the first."""
        if not self.streamed:
            return 0.0
        return max(0.0, 1 - self.cache_bytes / (self.trained_tokens * self.bytes_per_token))

    @property
    def captured_tokens(self) -> float:
        """Tokens that replicas capture, over all epochs."""
        return self.other_tokens + self.trained_tokens * (1 + (self.epochs - 1) * self.again)

    @property
    def in_flight_tokens(self) -> int:
        """Tokens that must have room between capture and consumer for these times."""
        windows = 2 * self.window_tokens if self.streamed else 0
        room = HELD_PIECES * self.replicas * self.piece_tokens + windows
        return min(room, self.other_tokens + self.trained_tokens)

    def enough_replicas(self) -> int:
        """The number of replicas beyond which training does not end more than 1 % sooner."""

        def ends(replicas: int) -> float:
            return dataclasses.replace(self, replicas=replicas).times().training_s

        most = math.ceil((self.other_tokens + self.trained_tokens) / self.piece_tokens)
        least = NO_GAIN * ends(most)
        return next(n for n in range(1, most + 1) if ends(n) <= least)

    def gains(self) -> dict[str, float]:
        """Share of the time until training ends that doubling each part saves."""
        parts = {
            "capture": ("replicas",),
            "network": ("network_bytes_per_s",),
            "disk": ("write_bytes_per_s", "read_bytes_per_s"),
            "training": ("training_tokens_per_s",),
        }
        now = self.times().training_s
        return {
            part: 1
            - dataclasses.replace(self, **{name: 2 * getattr(self, name) for name in names})
            .times()
            .training_s
            / now
            for part, names in parts.items()
        }


def cluster_schedule(
    tokens: int, recipe: Recipe, target_config: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The schedule of both ways for features; None without a cluster.

    `missing` has the reason where there is no schedule.
    """
    if recipe.cluster.address is None:
        return None
    capture = capture_cost(tokens, recipe, target_config)
    training = training_cost(tokens, recipe, target_config)
    lacking = [
        f"{name}.tokens_per_s"
        for name, cost in (("capture", capture), ("training", training))
        if cost.tokens_per_s is None
    ]
    if lacking or not tokens:
        reason = f"no rate in {' and '.join(lacking)}" if lacking else "no token counted yet"
        return {"missing": reason}
    plan = plan_of(tokens, recipe, target_config)
    engine = recipe.serving.engine
    gpus = plan.replicas * engine.tensor_parallel * engine.pipeline_parallel
    workers = recipe.training.processes
    return {
        "address": recipe.cluster.address,
        "capture_replicas": plan.replicas,
        "training_workers": workers,
        "epochs": plan.epochs,
        "rates": {name: _finite(getattr(plan, name)) for name in RATES},
        "stored": _way(plan, gpus, workers),
        "streamed": _way(dataclasses.replace(plan, streamed=True), gpus, workers),
    }


RATES = (
    "capture_tokens_per_s",
    "training_tokens_per_s",
    "bytes_per_token",
    "stored_bytes_per_token",
    "network_bytes_per_s",
    "write_bytes_per_s",
    "read_bytes_per_s",
    "replica_start_s",
    "training_start_s",
)


def plan_of(tokens: int, recipe: Recipe, target_config: Mapping[str, Any]) -> ClusterPlan:
    """Stored features of `tokens` tokens of traffic; the recipe must have both rates."""
    capture = capture_cost(tokens, recipe, target_config)
    training = training_cost(tokens, recipe, target_config)
    assert capture.tokens_per_s is not None and training.tokens_per_s is not None
    cluster, assumed = recipe.cluster, recipe.cluster.rates
    here = cluster.address == "local"
    # Without GPUs, replicas share the machine's cores.
    sharing = cluster.capture_replicas if here and not shutil.which("nvidia-smi") else 1
    spec = stored_features(recipe.speculator, target_config)
    other = round(tokens * (recipe.split.validation_fraction + recipe.split.heldout_fraction))
    piece = recipe.capture.batch_tokens
    window = recipe.training.shuffle_tokens or STREAMED_WINDOW
    return ClusterPlan(
        replicas=cluster.capture_replicas,
        streamed=False,
        trained_tokens=tokens - other,
        other_tokens=other,
        epochs=training.epochs,
        piece_tokens=piece,
        window_tokens=math.ceil(window / piece) * piece,
        capture_tokens_per_s=capture.tokens_per_s / sharing,
        training_tokens_per_s=training.tokens_per_s,
        bytes_per_token=bytes_per_token(spec.width, "bf16", len(spec.streams)),
        stored_bytes_per_token=capture.bytes_per_token,
        network_bytes_per_s=math.inf if here else assumed.network_gb_per_s * GB,
        write_bytes_per_s=assumed.write_gb_per_s * GB,
        read_bytes_per_s=assumed.read_gb_per_s * GB,
        replica_start_s=assumed.replica_start_s,
        training_start_s=assumed.training_start_s,
        cache_bytes=cluster.cache_gb * GB,
    )


def _way(plan: ClusterPlan, gpus: int, workers: int) -> dict[str, Any]:
    """The schedule of one way for features."""
    found, saved = plan.times(), plan.gains()
    in_memory = plan.trained_tokens if plan.streamed else 0
    stored = plan.other_tokens + plan.trained_tokens - in_memory
    read = plan.epochs * (plan.trained_tokens - in_memory)
    trained_s = found.training_s - found.first_step_s + plan.training_start_s
    in_flight = plan.in_flight_tokens * plan.bytes_per_token
    return {
        "gpus": gpus + workers if plan.streamed else max(gpus, workers),
        "capture_s": round(found.capture_s),
        "first_step_s": round(found.first_step_s),
        "training_s": round(found.training_s),
        "capture_gpu_hours": round(gpus * found.capture_s / 3600, 1),
        "training_gpu_hours": round(workers * trained_s / 3600, 1),
        "captured_tokens_per_s": round(plan.captured_tokens / found.capture_s),
        "bottleneck": max(saved, key=lambda name: saved[name]),
        "gain_of_doubling": {name: round(share, 3) for name, share in saved.items()},
        "enough_replicas": plan.enough_replicas(),
        "network_bytes": round(plan.captured_tokens * plan.bytes_per_token),
        "disk_bytes": round((stored + read) * plan.stored_bytes_per_token),
        "in_flight_bytes": round(in_flight),
        "object_store_bytes": round(2 * in_flight),
    }


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value
