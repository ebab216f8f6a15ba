"""`--dry-run` with `cluster.*`: the recipe's numbers in the model, and the printed schedule."""

import io
import json
import math
import subprocess
import sys

import pytest
from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.recipes.config.load import load_recipe
from outrider.recipes.dry_run import cluster_schedule as scheduling
from outrider.recipes.dry_run.cluster_schedule import cluster_schedule, equal_pieces
from outrider.recipes.dry_run.cluster_schedule_page import ROWS, print_schedule
from outrider.recipes.dry_run.training_cost import price
from outrider.recipes.dry_run.training_cost_page import print_price
from outrider.recipes.pipeline.run_dir import RunDirectory
from tests.r1_config import R1

TOKENS = 20_000_000
PIECE_S = 262_144 / 10_000


def recipe_for(*overrides: str):
    loaded = load_recipe("r1/resume_screening", ["traffic.path=nano_r1/social_chat", *overrides])
    return loaded.recipe


def test_without_a_cluster_there_is_no_schedule_and_simpy_is_not_imported():
    code = """
import sys
from outrider.recipes.config.load import load_recipe
from outrider.recipes.dry_run.training_cost import price
from outrider.recipes.dry_run.cluster_schedule import cluster_schedule
recipe = load_recipe("r1/resume_screening", ["traffic.path=nano_r1/social_chat"]).recipe
assert cluster_schedule(10**6, recipe, {}) is None
assert not {"simpy", "ray", "torch"} & set(sys.modules), set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_simpy_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "simpy", None)
    with pytest.raises(OutriderError, match=r"outrider\[cluster\]"):
        cluster_schedule(TOKENS, recipe_for("cluster.address=auto"), R1)


def test_the_schedule_of_r1_is_the_arithmetic_of_its_recipe():
    pytest.importorskip("simpy")
    recipe = recipe_for("cluster.address=auto", "cluster.capture_replicas=4")
    found = json.loads(json.dumps(cluster_schedule(TOKENS, recipe, R1)))
    assert (found["capture_replicas"], found["training_workers"], found["epochs"]) == (4, 8, 2)
    stored, streamed = found["stored"], found["streamed"]
    assert (stored["gpus"], streamed["gpus"]) == (32, 40)
    # 10,000 tokens/s a replica, 14,340 bytes a token, written at 1 GB/s: capture is slower.
    captured = 60 + TOKENS * max(1 / 40_000, 14_340 / 1e9)
    assert stored["capture_s"] == pytest.approx(captured, abs=3 * PIECE_S)
    trained = 60 + 2 * 0.7 * TOKENS / 20_000
    assert stored["training_s"] == pytest.approx(captured + trained, abs=4 * PIECE_S)
    assert stored["bottleneck"] == "training"
    assert streamed["network_bytes"] == pytest.approx((0.3 + 2 * 0.7) * TOKENS * 14_340)
    assert streamed["disk_bytes"] == pytest.approx(0.3 * TOKENS * 14_340)
    assert stored["disk_bytes"] == pytest.approx((1 + 2 * 0.7) * TOKENS * 14_340)
    # Training takes 20,000 tokens/s, two replicas' worth, and waits for validation and held-out.
    assert streamed["bottleneck"] == "training"
    # Capture of those, the replicas' second start, and the first window of four pieces.
    other = 0.3 * TOKENS * max(1 / 40_000, 14_340 / 1e9) + 60 + 2**20 / 40_000
    assert streamed["first_step_s"] == pytest.approx(60 + other, abs=2 * PIECE_S)
    trained = 2 * 0.7 * TOKENS / 20_000
    assert streamed["training_s"] == pytest.approx(60 + other + trained, abs=3 * PIECE_S)
    assert streamed["object_store_bytes"] == 2 * streamed["in_flight_bytes"]


def test_limits_and_rates_of_the_recipe_count():
    pytest.importorskip("simpy")
    plain = cluster_schedule(TOKENS, recipe_for("cluster.address=auto"), R1)
    each = 262_144 * 14_340
    eight = ("cluster.address=auto", "cluster.capture_replicas=8")
    tight = recipe_for(*eight, "cluster.in_flight_gb=16")  # one window of four pieces
    found = cluster_schedule(TOKENS, tight, R1)["streamed"]
    assert 4 * each > 0.9 * found["held_bytes"] and found["in_flight_bytes"] == 16e9
    assert found["enough_in_flight_bytes"] > 16e9 and found["gain_of_doubling"]["held bytes"] > 0.1
    window = recipe_for("cluster.address=auto", "training.shuffle_tokens=262_144")  # one piece
    small = cluster_schedule(TOKENS, window, R1)["streamed"]
    assert small["first_step_s"] == pytest.approx(
        plain["streamed"]["first_step_s"] - 3 * PIECE_S, abs=1
    )
    assert small["held_bytes"] < plain["streamed"]["held_bytes"] / 2
    half = recipe_for("cluster.address=auto", "cluster.object_store_gb=8")
    assert cluster_schedule(TOKENS, half, R1)["stored"]["in_flight_bytes"] == 4e9
    fp8 = cluster_schedule(TOKENS, recipe_for("cluster.address=auto", "capture.dtype=fp8"), R1)
    assert fp8["stored"]["disk_bytes"] == pytest.approx(plain["stored"]["disk_bytes"] / 2, rel=1e-3)
    assert fp8["streamed"]["network_bytes"] == plain["streamed"]["network_bytes"]
    judged = recipe_for(
        "cluster.address=auto",
        "cluster.rates.replay_tokens_per_s=5000",
        "cluster.rates.serving_hours=2",
    )
    found = cluster_schedule(TOKENS, judged, R1)["stored"]
    assert found["seconds"] - found["training_s"] == pytest.approx(
        2 * 0.3 * TOKENS / 5000 + 7200, abs=2
    )


def test_replicas_on_one_machine_share_its_cores(monkeypatch):
    pytest.importorskip("simpy")
    monkeypatch.setattr(scheduling.shutil, "which", lambda name: None)
    recipe = recipe_for("cluster.address=local", "cluster.capture_replicas=4")
    rates = cluster_schedule(TOKENS, recipe, R1)["rates"]
    assert rates["capture_tokens_per_s"] == 2500 and rates["network_bytes_per_s"] is None


def test_no_rate_is_no_schedule():
    recipe = recipe_for("cluster.address=auto", "capture.tokens_per_s=null")
    found = cluster_schedule(TOKENS, recipe, R1)
    assert found == {"missing": "no rate in capture.tokens_per_s"}
    assert cluster_schedule(0, recipe_for("cluster.address=auto"), R1)["missing"]


def test_the_table_has_every_row_in_80_columns():
    pytest.importorskip("simpy")
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
    pytest.importorskip("simpy")
    (tmp_path / "config.json").write_text(json.dumps(R1))
    overrides = [f"target.model={tmp_path}", "cluster.address=auto"]
    run = RunDirectory(tmp_path / "run")
    found = price(run, recipe_for(*overrides), gpu_bytes=141 * 10**9)
    assert found["cluster"]["stored"]["gpus"] == 8
    assert "cluster" not in price(run, recipe_for(overrides[0]), gpu_bytes=141 * 10**9)
    page = io.StringIO()
    print_price(json.loads(json.dumps(found)), Console(file=page, width=80))
    assert "schedule: 1 capture replicas, 8 training workers, simulated" in page.getvalue()


def test_pieces_are_of_equal_size_and_lose_no_token():
    for tokens, largest in ((10, 3), (9, 3), (1, 5), (1_000_001, 65_536)):
        pieces = equal_pieces(tokens, largest)
        assert sum(pieces) == tokens and len(pieces) == math.ceil(tokens / largest)
        assert max(pieces) <= largest and max(pieces) - min(pieces) <= 1
    assert equal_pieces(0, 5) == []
