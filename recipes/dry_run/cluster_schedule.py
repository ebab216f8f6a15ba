"""The schedule of a recipe on a cluster, for `train-speculator --dry-run cluster.address=...`.

    cluster_schedule(tokens, recipe, target_config)    # one JSON object; None without a cluster

Capture replicas, training workers and evaluation are simulated (cluster_model.py) from the rates of
the recipe, once with stored and once with streamed features. The bottleneck is the part whose
doubling saves most of the time until training ends.
"""

import dataclasses
import math
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outrider.common.cluster.config import ClusterConfig
from outrider.common.errors import OutriderError
from outrider.data.config import bytes_per_token
from outrider.recipes.config.recipe import Recipe
from outrider.recipes.dry_run.estimates import capture_cost, training_cost
from outrider.speculators.planned import stored_features
from outrider.training.config import STREAMED_WINDOW

if TYPE_CHECKING:
    from outrider.recipes.dry_run.cluster_model import Layout, Rates, Work

GB = 1e9


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
    assert capture.tokens_per_s is not None and training.tokens_per_s is not None
    require_simpy()
    spec = stored_features(recipe.speculator, target_config)
    rates = dataclasses.replace(
        rates_of(recipe, capture.tokens_per_s, training.tokens_per_s),
        bytes_per_token=bytes_per_token(spec.width, "bf16", len(spec.streams)),
        stored_bytes_per_token=capture.bytes_per_token,
    )
    work = work_of(tokens, recipe, training.epochs)
    replicas, workers = recipe.cluster.capture_replicas, recipe.training.processes
    engine = recipe.serving.engine
    gpus = replicas * engine.tensor_parallel * engine.pipeline_parallel
    return {
        "address": recipe.cluster.address,
        "capture_replicas": replicas,
        "training_workers": workers,
        "epochs": training.epochs,
        "rates": {
            field.name: _finite(getattr(rates, field.name)) for field in dataclasses.fields(rates)
        },
        "stored": _way(work, rates, layout_of(recipe.cluster, False), max(gpus, workers)),
        "streamed": _way(work, rates, layout_of(recipe.cluster, True), gpus + workers),
    }


def rates_of(recipe: Recipe, capture_tokens_per_s: float, training_tokens_per_s: float) -> "Rates":
    """The model's rates, without the bytes of a token."""
    from outrider.recipes.dry_run.cluster_model import Rates

    assumed, cluster = recipe.cluster.rates, recipe.cluster
    here = cluster.address == "local"
    if here and not shutil.which("nvidia-smi"):
        capture_tokens_per_s /= cluster.capture_replicas  # they share the machine's cores
    return Rates(
        capture_tokens_per_s=capture_tokens_per_s,
        training_tokens_per_s=training_tokens_per_s,
        bytes_per_token=0,
        network_bytes_per_s=math.inf if here else assumed.network_gb_per_s * GB,
        write_bytes_per_s=assumed.write_gb_per_s * GB,
        read_bytes_per_s=assumed.read_gb_per_s * GB,
        replica_start_s=assumed.replica_start_s,
        training_start_s=assumed.training_start_s,
        replay_tokens_per_s=assumed.replay_tokens_per_s or math.inf,
    )


def work_of(tokens: int, recipe: Recipe, epochs: int) -> "Work":
    """The model's work for `tokens` tokens of traffic, in pieces of `capture.batch_tokens`."""
    from outrider.recipes.dry_run.cluster_model import Work

    split = recipe.split
    other = round(tokens * (split.validation_fraction + split.heldout_fraction))
    replayed = other if recipe.cluster.rates.replay_tokens_per_s else 0
    return Work(
        pieces=equal_pieces(tokens - other, recipe.capture.batch_tokens),
        epochs=epochs,
        other_pieces=equal_pieces(other, recipe.capture.batch_tokens),
        window_pieces=window_pieces(recipe),
        replayed_tokens=2 * replayed,  # base and custom
        served_s=(recipe.cluster.rates.serving_hours or 0) * 3600,
    )


def window_pieces(recipe: Recipe) -> int:
    """Pieces of a window of streamed training."""
    window = recipe.training.shuffle_tokens or STREAMED_WINDOW
    return -(-window // recipe.capture.batch_tokens)


def equal_pieces(tokens: int, largest: int) -> list[int]:
    """`tokens` in as few pieces of about the same size as `largest` allows."""
    count = -(-tokens // largest)
    return [tokens * (n + 1) // count - tokens * n // count for n in range(count)]


def layout_of(cluster: ClusterConfig, streamed: bool) -> "Layout":
    """The model's layout of a cluster."""
    from outrider.recipes.dry_run.cluster_model import Layout

    limit = math.inf if cluster.in_flight_gb is None else cluster.in_flight_gb * GB
    if cluster.in_flight_gb is None and cluster.object_store_gb is not None:
        limit = cluster.object_store_gb * GB / 2  # as the session has it
    return Layout(
        replicas=cluster.capture_replicas,
        streamed=streamed,
        held_bytes=limit,
        replay_tasks=cluster.capture_replicas,
        cache_bytes=cluster.cache_gb * GB if streamed else 0.0,
    )


def _way(work: "Work", rates: "Rates", layout: "Layout", gpus: int) -> dict[str, Any]:
    """The schedule of one way for features."""
    from outrider.recipes.dry_run.cluster_model import (
        enough_held_bytes,
        enough_replicas,
        gains,
        simulate,
    )

    in_flight = enough_held_bytes(work, rates, layout)
    if math.isinf(layout.held_bytes):
        # Half of an object store of unknown size: as large as is of use.
        layout = dataclasses.replace(layout, held_bytes=in_flight)
    found = simulate(work, rates, layout)
    saved = gains(work, rates, layout)
    enough = enough_replicas(work, rates, layout)
    return {
        "gpus": gpus,
        "capture_s": round(found.capture_s),
        "first_step_s": round(found.first_step_s),
        "training_s": round(found.training_s),
        "seconds": round(found.seconds),
        "captured_tokens_per_s": round(found.captured_tokens / found.capture_s),
        "trained_tokens_per_s": round(work.epochs * work.trained_tokens / found.training_s),
        "bottleneck": max(saved, key=lambda name: saved[name]),
        "gain_of_doubling": {name: round(share, 3) for name, share in saved.items()},
        "busy": {name: round(share, 3) for name, share in found.busy.items()},
        "enough_replicas": enough,
        "network_bytes": round(found.moved_bytes),
        "disk_bytes": round(found.disk_bytes),
        "held_bytes": round(found.held_bytes),
        "held_by_one_replica_bytes": round(found.node_bytes),
        "object_store_bytes": round(2 * layout.held_bytes),
        "in_flight_bytes": round(layout.held_bytes),
        "enough_in_flight_bytes": round(in_flight),
    }


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def require_simpy() -> None:
    """Raises an `OutriderError` where the simulator is not installed."""
    try:
        import simpy  # noqa: F401
    except ModuleNotFoundError:
        raise OutriderError(
            "--dry-run with cluster.address simulates the cluster with simpy, which is not"
            " installed; run `pip install -e '.[cluster]'` in Outrider's checkout, or leave"
            " cluster.address out"
        ) from None
