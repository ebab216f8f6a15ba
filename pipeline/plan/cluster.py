"""Hours of capture and training on a cluster, for `--dry-run cluster.address=...`.

    cluster_schedule(volume, recipe, target_config)    # {"stored": {...}, "streamed": {...}}

The slowest of replicas, network and store sets the pace of capture. Stored training follows it and
reads every epoch; streamed training starts with its first piece and takes the longer of capture and
training, and captures in every epoch. Rates (hours.py) are those of one replica and of all training
processes.
"""

from collections.abc import Mapping
from typing import Any

from outrider.data.config import bytes_per_token
from outrider.pipeline.plan.hours import rates_of
from outrider.pipeline.plan.traffic import Volume
from outrider.pipeline.recipe.recipe import Recipe
from outrider.speculators.planned import stored_features, warms_up

NETWORK_BYTES_PER_S = 3e9
"""Into one node through Ray's object store; assumed: Ethernet of 25 Gbit/s."""

STORE_BYTES_PER_S = 1e9
"""Writing of the feature store by the command's process, with checksums; assumed."""

HELD_PIECES = 3
"""Pieces in flight for each replica: being captured, waiting, being read."""


def cluster_schedule(
    volume: Volume, recipe: Recipe, target_config: Mapping[str, Any]
) -> dict[str, Any]:
    """Hours and bytes of both ways for features; empty without a cluster or without rates."""
    rates, cluster = rates_of(recipe, target_config), recipe.cluster
    if cluster.address is None or rates is None or not volume.captured:
        return {}
    spec = stored_features(recipe.speculator, target_config)
    each = bytes_per_token(spec.width, "bf16", len(spec.streams))
    epochs = recipe.training.started(warms_up(recipe.speculator, target_config)).epochs
    # Replicas of a private cluster share this machine.
    together = 1 if cluster.address == "local" else cluster.capture_replicas
    paces = {
        "replicas": together * rates.capture_tokens_per_s,
        "network": NETWORK_BYTES_PER_S / each,
    }
    stored_each = bytes_per_token(spec.width, recipe.capture.dtype, len(spec.streams))
    stored_paces = paces | {"store": STORE_BYTES_PER_S / stored_each}
    pace, stored_pace = (min(some, key=some.__getitem__) for some in (paces, stored_paces))
    engine, workers = recipe.serving.engine, recipe.training.processes
    gpus = cluster.capture_replicas * engine.tensor_parallel * engine.pipeline_parallel
    start, train_s = rates.engine_start_s, epochs * volume.train / rates.training_tokens_per_s
    room = HELD_PIECES * cluster.capture_replicas * recipe.capture.batch_tokens

    def way(capture_s: float, ready_s: float, pace: str, streamed: bool) -> dict[str, Any]:
        in_flight = min(room, volume.captured) * each
        training_s = max(ready_s + train_s, capture_s) if streamed else capture_s + train_s
        return {
            "gpus": gpus + workers if streamed else max(gpus, workers),
            "capture_s": round(capture_s),
            "training_s": round(training_s),
            "bottleneck": pace if capture_s - start > train_s else "training",
            "in_flight_bytes": round(in_flight),
            "object_store_bytes": round(2 * in_flight),
        }

    stored_s = start + volume.captured / stored_paces[stored_pace]
    # Validation and held-out part are stored in both ways; replicas start again for the stream.
    other_s = 2 * start + (volume.captured - volume.train) / stored_paces[stored_pace]
    streamed_s = other_s + epochs * volume.train / paces[pace]
    return {
        "stored": way(stored_s, stored_s, stored_pace, streamed=False),
        "streamed": way(streamed_s, other_s, pace, streamed=True),
    }
