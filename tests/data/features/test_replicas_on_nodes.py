"""Replicas on three raylets: nodes that die and come, lost objects, full stores, other versions."""

import contextlib
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from outrider.common import process_tree
from outrider.common.cluster import session as cluster_session
from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.common.errors import OutriderError
from outrider.data.features.replica import PIECES_AT_A_TIME
from outrider.data.features.replicas import Replicas
from tests.cluster_nodes import MB, local_nodes
from tests.data.features.recorded_replica import SETUP, SPEC, RecordedReplica, plan, states_of
from tests.data.features.test_replicas import bits

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def config_of(nodes, **settings):
    settings = {"capture_replicas": 2, "cores_per_replica": 1} | settings
    return ClusterConfig(address=nodes.address, **settings)


def replicas_of(session, config):
    return Replicas(session, config, SETUP, 1000, actor=RecordedReplica)


def assert_complete(order, taken):
    assert [piece.index for piece, _ in taken] == [piece.index for piece in order]
    for piece, found in taken:
        assert list(found) == piece.row_ids
        for row in piece.rows:
            assert np.array_equal(found[row.row_id], states_of(row.token_ids))


def test_a_killed_node_s_pieces_go_to_the_others_and_a_new_node_joins(capsys):
    asked = plan(30)
    each = max(piece.nbytes(SPEC) for piece in asked)
    with local_nodes() as nodes:
        first, _ = nodes.add(), nodes.add()
        with open_cluster(config_of(nodes)) as session:
            config = config_of(nodes)
            with replicas_of(session, config) as replicas:
                while len(replicas.running()) < 2:  # so that both have pieces
                    replicas.wait([])
                taken = []
                for piece, rows in replicas.stream(asked, 6 * each):
                    taken.append((piece, bits(rows)))
                    if len(taken) == 5:
                        # The replica that runs there, and the objects in its store, are gone.
                        nodes.kill(first)
                    if len(taken) == 12:
                        assert len(replicas.running()) == 1
                        nodes.add()
                        while len(replicas.running()) < 2:
                            time.sleep(0.1)
                assert_complete(asked, taken)
                assert replicas.watermarks.lost_replicas == 1
                assert replicas.watermarks.captured_again >= 1
    assert "its work goes to the others" in capsys.readouterr().err


def test_a_lost_object_is_captured_again():
    """The node dies after its pieces are done and before they are read."""
    asked = plan(8)
    each = max(piece.nbytes(SPEC) for piece in asked)
    with local_nodes() as nodes:
        first = nodes.add()
        with open_cluster(config_of(nodes)) as session:
            config = config_of(nodes, capture_replicas=1)
            with replicas_of(session, config) as replicas:
                with replicas.references(asked, 8 * each) as stream:
                    while replicas.watermarks.pieces < len(asked):
                        time.sleep(0.05)
                    nodes.kill(first)
                    nodes.add()
                    taken = []
                    while (captured := stream.take()) is not None:
                        taken.append((captured.piece, bits(stream.rows(captured))))
                assert_complete(asked, taken)
                # And what was given to the replica before its end was known.
                lost = replicas.watermarks.captured_again
                assert len(asked) <= lost <= len(asked) + PIECES_AT_A_TIME


def test_a_slow_consumer_stops_the_replicas_at_the_limit():
    """Ten times slower than two replicas; the stores never hold more than the limit."""
    asked = plan(16)
    each = max(piece.nbytes(SPEC) for piece in asked)
    with local_nodes() as nodes:
        nodes.add(environment={"RECORDED_WAIT_S": "0.02"})
        nodes.add(environment={"RECORDED_WAIT_S": "0.02"})
        config, taken, ahead = config_of(nodes), [], []
        with open_cluster(config) as session, replicas_of(session, config) as replicas:
            for piece, rows in replicas.stream(asked, 3 * each):
                time.sleep(0.2)
                taken.append((piece, bits(rows)))
                ahead.append(replicas.watermarks.pieces - len(taken))
                assert replicas.watermarks.in_flight_bytes <= 3 * each
            assert_complete(asked, taken)
            assert max(ahead) <= 2
            assert 2 * each < replicas.watermarks.peak_bytes <= 3 * each


def test_a_full_object_store_delays_and_never_loses():
    """Other work fills the node's store while pieces are captured, and leaves it again."""
    import ray

    asked = plan(10, rows=8)
    each = max(piece.nbytes(SPEC) for piece in asked)
    with local_nodes(store_mb=80) as nodes:
        nodes.add(resources={"here": 1})
        with open_cluster(config_of(nodes)) as session:
            fill = ray.remote(resources={"here": 0.1}, num_cpus=0)(
                lambda: np.zeros(76 * MB, np.uint8)
            )
            held = fill.remote()
            ray.wait([held], fetch_local=False)
            with replicas_of(session, config_of(nodes, capture_replicas=1)) as replicas:
                taken = []
                for piece, rows in replicas.stream(asked, 8 * each):
                    taken.append((piece, bits(rows)))
                    if len(taken) == 5:
                        del held
                assert_complete(asked, taken)


def test_a_replica_that_fails_its_check_is_left_out_and_named(capsys):
    asked = plan(6)
    with local_nodes() as nodes:
        nodes.add(environment={"RECORDED_FAILS": "self-check: states of another model"})
        nodes.add()
        config = config_of(nodes)
        with open_cluster(config) as session, replicas_of(session, config) as replicas:
            taken = [(piece, bits(rows)) for piece, rows in replicas.stream(asked, 10 * MB)]
            assert_complete(asked, taken)
            (why,) = replicas.left_out()
            assert "self-check: states of another model" in why
    assert "is left out: self-check" in capsys.readouterr().err


def test_an_error_where_no_replica_is_left(tmp_path):
    with local_nodes() as nodes:
        nodes.add(environment={"RECORDED_FAILS": "self-check: wrong"})
        with open_cluster(config_of(nodes)) as session:
            config = config_of(nodes, capture_replicas=1)
            with (
                replicas_of(session, config) as replicas,
                pytest.raises(OutriderError, match=r"no capture replica is left: replica 0: self-"),
            ):
                list(replicas.stream(plan(2), 10 * MB))
        nodes.kill(nodes.nodes[0])
        nodes.add(environment={"RECORDED_DIES": str(tmp_path / "never")})
        with open_cluster(config_of(nodes)) as session:
            greedy = config_of(nodes, cores_per_replica=8, start_timeout_s=2)
            with (
                replicas_of(session, greedy) as replicas,
                pytest.raises(OutriderError, match=r"start_timeout_s = 2: .* needs 8 CPU of one"),
            ):
                replicas.checks()


def test_nodes_with_another_outrider_are_named(tmp_path):
    """A node whose package differs in one file; a limit that does not fit the stores."""
    other = tmp_path / "outrider"
    for room in ("common", "speculators", "serving", "data", "training", "eval", "recipes"):
        ignored = shutil.ignore_patterns("*.safetensors", "__pycache__", "*.gz")
        shutil.copytree(ROOT / room, other / room, ignore=ignored)
    with (other / "common" / "errors.py").open("a") as file:
        file.write("\n# another version\n")
    with local_nodes() as nodes:
        nodes.add()
        with (
            open_cluster(config_of(nodes)) as session,
            pytest.raises(OutriderError, match=r"in_flight_gb = 1: .* lower it to 0.08"),
        ):
            session.in_flight_bytes(config_of(nodes, in_flight_gb=1))
        nodes.add(environment={"PYTHONPATH": str(tmp_path)})
        ours = cluster_session.node_facts().outrider
        with (
            pytest.raises(OutriderError, match=r"nodes of the cluster differ .*: vm? .*") as raised,
            open_cluster(config_of(nodes)),
        ):
            pass
        assert ours in str(raised.value) and str(raised.value).count("outrider 0.1.0") == 2


@pytest.mark.parametrize("seed", range(20))
def test_random_kills_end_with_the_same_states(seed):
    draw = random.Random(seed)
    asked = plan(24)
    each = max(piece.nbytes(SPEC) for piece in asked)
    with local_nodes() as nodes:
        for _ in range(3):
            nodes.add()
        with open_cluster(config_of(nodes)) as session:
            config = config_of(nodes, capture_replicas=3, replica_restarts=20)
            with replicas_of(session, config) as replicas:
                replicas.checks()
                taken, kills = [], 0
                for piece, rows in replicas.stream(asked, draw.randint(1, 8) * each):
                    taken.append((piece, bits(rows)))
                    if draw.random() < 0.25 and kills < 6:
                        kills += 1
                        running = replicas.running()
                        if draw.random() < 0.5 and len(nodes.nodes) > 1:
                            nodes.kill(draw.choice(nodes.nodes))
                        elif running and (pid := draw.choice(running).checks.get("pid")):
                            _kill(pid)
                        if draw.random() < 0.6 and len(nodes.nodes) < 3:
                            nodes.add()
                assert_complete(asked, taken)


def _kill(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).kill()


DRIVER = """
import os, sys, time
from outrider.common import process_tree
from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.data.features.replica import PIECES_AT_A_TIME
from outrider.data.features.replicas import Replicas
from tests.data.features.recorded_replica import SETUP, RecordedReplica, plan

config = ClusterConfig(address="local", capture_replicas=1, object_store_gb=0.1)
with open_cluster(config, cpus=1) as session:
    with Replicas(session, config, SETUP, 1000, actor=RecordedReplica) as replicas:
        for piece, rows in replicas.stream(plan(1000), 10**6):
            if piece.index == 2:
                print(os.environ[process_tree.MARK].split(":")[-1], session.folder, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_driver_that_was_stopped(number):
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    mark, folder = process.stdout.readline().split()
    assert len(process_tree.members(mark)) > 4 and Path(folder).is_dir()
    process.send_signal(number)
    process.wait()
    assert process_tree.wait_until(lambda: not process_tree.members(mark), 60)
    assert process_tree.wait_until(lambda: not Path(folder).exists(), 60)
