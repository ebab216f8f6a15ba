"""Capture replicas: order, back-pressure, lost replicas, nodes and objects, nothing left behind.

    python -m pytest tests/data/features/test_replicas.py -m slow        # minutes

A private cluster, and clusters of several raylets on this machine (tests/cluster_nodes.py).
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from outrider.common import process_tree
from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.common.errors import OutriderError
from outrider.data.features.replicas import Replicas, start_replicas
from outrider.serving.engine import AskedRow
from tests.cluster_nodes import MB, local_nodes
from tests.data.features.recorded_replica import (
    CANARY,
    SETUP,
    TOKEN_BYTES,
    RecordedReplica,
    plan,
    states_of,
)

pytestmark = pytest.mark.slow

PIECE_BYTES = 2 * 400 * TOKEN_BYTES
"""States of the largest piece of `plan`."""

ROOT = Path(__file__).resolve().parents[3]


def config_of(address, **settings):
    settings = {"capture_replicas": 2, "cores_per_replica": 1} | settings
    return ClusterConfig(address=address, **settings)


@contextlib.contextmanager
def replicas_of(session, config):
    """The replicas, without their engines; all of them run where there is room."""
    with start_replicas(config, SETUP, RecordedReplica) as (_, actors):
        yield Replicas(actors, TOKEN_BYTES, config.start_timeout_s)


def all_running(replicas, count=2):
    while len(replicas.running) < count:
        replicas._wait([], 0.1)


def bits(captured):
    return [
        (states.token_ids.numpy(), states.hidden.view(torch.int16).numpy()) for states in captured
    ]


def assert_complete(order, taken):
    assert [piece.index for piece, _ in taken] == [piece.index for piece in order]
    for piece, captured in taken:
        for row, (token_ids, state_TH) in zip(piece.rows, captured, strict=True):
            assert np.array_equal(token_ids, row.token_ids)
            assert np.array_equal(state_TH, states_of(row.token_ids))


def test_a_private_cluster_loses_nothing_and_leaves_nothing():
    """One of two replicas is killed; only 127.0.0.1 listens; no token is in Ray's logs."""
    asked = plan(12)
    local = config_of("local")
    with open_cluster(local, cpus=2) as session, replicas_of(session, local) as replicas:
        mark = os.environ[process_tree.MARK].split(":")[-1]
        folder = session.folder
        assert replicas.answer(
            [AskedRow(row_id="a", token_ids=[3], temperature=0.6, top_p=0.95, max_tokens=5)]
        ) == [[3] * 5]
        all_running(replicas)
        taken = []
        order = [*asked[6:], *asked[:6], asked[0]]
        for piece, rows in replicas.stream(order, 4 * PIECE_BYTES):
            taken.append((piece, bits(rows)))
            assert rows[0].scores == [[1.0], [2.0]]
            if len(taken) == 3:
                psutil.Process(next(iter(replicas.running.values()))["pid"]).kill()
        assert_complete(order, taken)
        assert replicas.lost == 1
        listening = {
            connection.laddr.ip
            for process in process_tree.marked_processes(mark)
            for connection in process.net_connections()
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening and all(ip.removeprefix("::ffff:") == "127.0.0.1" for ip in listening)
        logged = "".join(
            path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()
        )
        assert logged and str(CANARY) not in logged
    assert not folder.exists()
    assert not process_tree.marked_processes(mark)


def test_a_killed_node_s_pieces_go_to_the_others_and_a_new_node_joins(capsys):
    """What waits in the dead node's object store is captured again."""
    asked = plan(30)
    with local_nodes() as nodes:
        first = nodes.add()
        _ = nodes.add()
        config = config_of(nodes.address)
        with open_cluster(config) as session, replicas_of(session, config) as replicas:
            all_running(replicas)
            taken = []
            for piece, rows in replicas.stream(asked, 6 * PIECE_BYTES):
                taken.append((piece, bits(rows)))
                if len(taken) == 5:
                    nodes.kill(first)
                if len(taken) == 12:
                    assert len(replicas.running) == 1
                    nodes.add()
                    all_running(replicas)
            assert_complete(asked, taken)
            assert replicas.lost == 1
    assert "its work goes to the others" in capsys.readouterr().err


def test_a_slow_consumer_stops_the_replicas_at_the_limit(tmp_path):
    asked = plan(16)
    log = tmp_path / "captured"
    with local_nodes() as nodes:
        for _ in range(2):
            nodes.add(environment={"RECORDED_CAPTURED": str(log)})
        config = config_of(nodes.address)
        taken = []
        ahead = []
        with open_cluster(config) as session, replicas_of(session, config) as replicas:
            for piece, rows in replicas.stream(asked, 3 * PIECE_BYTES):
                time.sleep(0.2)
                taken.append((piece, bits(rows)))
                ahead.append(log.stat().st_size - len(taken))
            assert_complete(asked, taken)
            assert max(ahead) == 2, "with the one that is being read: three"


def test_a_full_object_store_delays_and_never_loses():
    """Other work fills the node's store while pieces are captured, and leaves it again."""
    import ray

    asked = plan(10, rows=8)
    with local_nodes(store_mb=80) as nodes:
        nodes.add(resources={"here": 1})
        config = config_of(nodes.address, capture_replicas=1)
        with open_cluster(config) as session:
            fill = ray.remote(resources={"here": 0.1}, num_cpus=0)(
                lambda: np.zeros(76 * MB, np.uint8)
            )
            held = fill.remote()
            ray.wait([held], fetch_local=False)
            with replicas_of(session, config) as replicas:
                taken = []
                for piece, rows in replicas.stream(asked, 8 * 8 * 400 * TOKEN_BYTES):
                    taken.append((piece, bits(rows)))
                    if len(taken) == 5:
                        del held
                assert_complete(asked, taken)


def test_a_replica_that_fails_its_check_is_left_out_and_the_last_one_is_an_error(capsys):
    asked = plan(6)
    with local_nodes() as nodes:
        nodes.add(environment={"RECORDED_FAILS": "self-check: states of another model"})
        alone = config_of(nodes.address, capture_replicas=1)
        greedy = alone.model_copy(update={"cores_per_replica": 8, "start_timeout_s": 2})
        with open_cluster(alone) as session:
            with (
                replicas_of(session, alone) as replicas,
                pytest.raises(OutriderError, match=r"no capture replica is left: replica 0: self"),
            ):
                list(replicas.stream(plan(2), 10 * MB))
            with (
                replicas_of(session, greedy) as replicas,
                pytest.raises(OutriderError, match=r"start_timeout_s = 2: no capture replica"),
            ):
                list(replicas.stream(plan(2), 10 * MB))
            nodes.add()
            config = config_of(nodes.address)
            with replicas_of(session, config) as replicas:
                while not replicas.left_out:  # it may start after the other one has all pieces
                    taken = [(piece, bits(rows)) for piece, rows in replicas.stream(asked, 10 * MB)]
                    assert_complete(asked, taken)
                (why,) = replicas.left_out
                assert "self-check: states of another model" in why
    assert "is left out: self-check" in capsys.readouterr().err


DRIVER = """
import os
from outrider.common import process_tree
from outrider.common.cluster.session import open_cluster
from tests.data.features.test_replicas import config_of, plan, replicas_of

config = config_of("local", capture_replicas=1)
with open_cluster(config, cpus=1) as session, replicas_of(session, config) as replicas:
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
    assert len(process_tree.marked_processes(mark)) > 4 and Path(folder).is_dir()
    process.send_signal(number)
    process.wait()
    assert process_tree.wait_until(lambda: not process_tree.marked_processes(mark), 60)
    assert process_tree.wait_until(lambda: not Path(folder).exists(), 60)
