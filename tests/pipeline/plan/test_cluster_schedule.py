"""`--dry-run` with `cluster.*`: the formula by hand and by trying, and the printed schedule."""

import dataclasses
import io
import json
import math
import random

import pytest
from rich.console import Console

from outrider.pipeline.plan import cluster_schedule as scheduling
from outrider.pipeline.plan.cluster_schedule import ClusterPlan, cluster_schedule, plan_of
from outrider.pipeline.plan.cluster_schedule_page import ROWS, print_schedule
from outrider.pipeline.plan.training_cost import price
from outrider.pipeline.plan.training_cost_page import print_price
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from tests.r1_config import R1

TOKENS = 20_000_000
PIECES = ClusterPlan(
    replicas=2,
    streamed=False,
    trained_tokens=1000,
    other_tokens=200,
    epochs=3,
    piece_tokens=100,
    window_tokens=200,
    capture_tokens_per_s=100,
    training_tokens_per_s=200,
    bytes_per_token=10,
    stored_bytes_per_token=10,
    replica_start_s=7,
    training_start_s=4,
)
"""Pieces of one second."""


def recipe_for(*overrides: str):
    loaded = load_recipe("r1/resume_screening", ["traffic.path=nano_r1/social_chat", *overrides])
    return loaded.recipe


def test_stored_training_waits_for_capture_and_reads_every_epoch():
    # Twelve pieces by two replicas, then three epochs of 5 s.
    assert PIECES.times() == (7 + 6 + 4, 7 + 6, 7 + 6 + 4 + 15)
    slow_read = dataclasses.replace(PIECES, read_bytes_per_s=1000)  # 100 tokens a second
    assert slow_read.times().training_s == 17 + 30
    slow_write = dataclasses.replace(PIECES, write_bytes_per_s=1000)
    assert slow_write.times().capture_s == 7 + 1 + 12  # the first piece, then a second for each
    both = dataclasses.replace(slow_write, network_bytes_per_s=500)
    assert both.times().capture_s == 7 + 1 + 12 * 2 + 1  # the last is written after its transfer


def test_streamed_training_takes_the_longer_of_capture_and_training():
    plan = dataclasses.replace(PIECES, streamed=True)
    begin = 7 + 1 + 7  # the other part, and replicas start again
    # Windows of two pieces come every second and train for one.
    assert plan.times() == (begin + 1, begin + 15, begin + 16)
    slow = dataclasses.replace(plan, training_tokens_per_s=100)
    assert slow.times().training_s == begin + 1 + 30
    one = dataclasses.replace(plan, replicas=1)
    assert one.times().training_s == 7 + 2 + 7 + 30 + 1
    kept = dataclasses.replace(one, cache_bytes=10_000)  # all of an epoch
    assert kept.times() == (7 + 2 + 7 + 2, 16 + 10, 16 + 10 + 1 + 10)
    assert (one.captured_tokens, kept.captured_tokens) == (3200, 1200)


@pytest.mark.parametrize("seed", range(20))
def test_what_limits_is_found_by_trying(seed):
    draw = random.Random(seed)
    plan = dataclasses.replace(
        PIECES,
        streamed=draw.random() < 0.5,
        replicas=draw.randint(1, 8),
        trained_tokens=20_000,
        training_tokens_per_s=draw.choice([150, 400, 900]),
        network_bytes_per_s=draw.choice([1500, 4000, math.inf]),
        write_bytes_per_s=draw.choice([1500, 4000]),
    )
    # By a literal pipeline: each piece is captured, carried, and written or trained on in turn.
    tokens = [100] * 2 + [100] * 200 * (plan.epochs if plan.streamed else 1)
    free, ready = [plan.replica_start_s] * plan.replicas, []
    carried = written = 0.0
    for index, size in enumerate(tokens):
        if plan.streamed and index == 2:
            free, carried = [written + plan.replica_start_s] * plan.replicas, written
        number = free.index(min(free))
        free[number] += size / 100
        carried = max(carried, free[number]) + size * 10 / plan.network_bytes_per_s
        if plan.streamed and index >= 2:
            ready.append(carried)
        else:
            written = max(written, carried) + size * 10 / plan.write_bytes_per_s
    trained = written + plan.training_start_s
    if plan.streamed:
        for last in ready[1::2]:
            trained = max(trained, last) + 200 / plan.training_tokens_per_s
    else:
        trained += plan.epochs * 20_000 / plan.training_tokens_per_s
    assert plan.times().training_s == pytest.approx(trained, rel=0.02)
    gains = plan.gains()
    doubled = {
        "capture": dataclasses.replace(plan, replicas=2 * plan.replicas),
        "training": dataclasses.replace(plan, training_tokens_per_s=2 * plan.training_tokens_per_s),
    }
    for part, other in doubled.items():
        saved = 1 - other.times().training_s / plan.times().training_s
        assert gains[part] == pytest.approx(saved) and saved <= max(gains.values())
    ends = [dataclasses.replace(plan, replicas=n).times().training_s for n in range(1, 203)]
    assert plan.enough_replicas() == next(n for n, s in enumerate(ends, 1) if s <= 1.01 * ends[-1])


def test_the_schedule_of_r1_is_the_arithmetic_of_its_recipe():
    recipe = recipe_for("cluster.address=auto", "cluster.capture_replicas=4")
    found = json.loads(json.dumps(cluster_schedule(TOKENS, recipe, R1)))
    assert (found["capture_replicas"], found["training_workers"], found["epochs"]) == (4, 8, 2)
    stored, streamed = found["stored"], found["streamed"]
    assert (stored["gpus"], streamed["gpus"]) == (32, 40)
    # 10,000 tokens/s a replica, 14,340 bytes a token, written at 1 GB/s: capture is slower.
    captured, piece_s = 60 + TOKENS / 40_000, 262_144 / 10_000
    assert stored["capture_s"] == pytest.approx(captured, abs=2 * piece_s)
    trained = 60 + 2 * 0.7 * TOKENS / 20_000
    assert stored["training_s"] == pytest.approx(captured + trained, abs=2 * piece_s)
    assert stored["capture_gpu_hours"] == pytest.approx(32 * captured / 3600, rel=0.1)
    assert stored["training_gpu_hours"] == pytest.approx(8 * trained / 3600, abs=0.1)
    assert stored["bottleneck"] == streamed["bottleneck"] == "training"
    assert streamed["network_bytes"] == pytest.approx((0.3 + 2 * 0.7) * TOKENS * 14_340)
    assert streamed["disk_bytes"] == pytest.approx(0.3 * TOKENS * 14_340)
    assert stored["disk_bytes"] == pytest.approx((1 + 2 * 0.7) * TOKENS * 14_340)
    # Three pieces a replica and two windows of four.
    assert streamed["in_flight_bytes"] == (3 * 4 + 2 * 4) * 262_144 * 14_340
    assert streamed["object_store_bytes"] == 2 * streamed["in_flight_bytes"]


def test_keys_of_the_recipe_count(monkeypatch):
    recipe = recipe_for("training.shuffle_tokens=300_000", "cluster.cache_gb=2")
    plan = plan_of(TOKENS, recipe, R1)
    assert plan.window_tokens == 2 * 262_144 and plan.cache_bytes == 2e9
    fp8 = plan_of(TOKENS, recipe_for("capture.dtype=fp8"), R1)
    assert fp8.stored_bytes_per_token < 0.51 * fp8.bytes_per_token
    monkeypatch.setattr(scheduling.shutil, "which", lambda name: None)
    shared = recipe_for("cluster.address=local", "cluster.capture_replicas=4")
    rates = cluster_schedule(TOKENS, shared, R1)["rates"]
    assert rates["capture_tokens_per_s"] == 2500 and rates["network_bytes_per_s"] is None


def test_no_rate_is_no_schedule():
    recipe = recipe_for("cluster.address=auto", "capture.tokens_per_s=null")
    found = cluster_schedule(TOKENS, recipe, R1)
    assert found == {"missing": "no rate in capture.tokens_per_s"}
    assert cluster_schedule(0, recipe_for("cluster.address=auto"), R1)["missing"]
    assert cluster_schedule(TOKENS, recipe_for(), R1) is None


def test_the_table_has_every_row_in_80_columns():
    page = io.StringIO()
    recipe = recipe_for("cluster.address=auto", "cluster.capture_replicas=4")
    console = Console(file=page, width=80)
    print_schedule(cluster_schedule(TOKENS, recipe, R1), console)
    print_schedule({"missing": "no rate in x"}, console)
    text = page.getvalue()
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(name in text for name, _, _ in ROWS)
    assert "no schedule: no rate in x" in text and "evaluation not counted" in text


def test_the_dry_run_prices_and_prints_the_schedule(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(R1))
    overrides = [f"target.model={tmp_path}", "cluster.address=auto"]
    run = RunDirectory(tmp_path / "run")
    found = price(run, recipe_for(*overrides), gpu_bytes=141 * 10**9)
    assert found["cluster"]["stored"]["gpus"] == 8
    assert "cluster" not in price(run, recipe_for(overrides[0]), gpu_bytes=141 * 10**9)
    page = io.StringIO()
    print_price(json.loads(json.dumps(found)), Console(file=page, width=80))
    assert "schedule: 1 capture replicas, 8 training workers" in page.getvalue()
