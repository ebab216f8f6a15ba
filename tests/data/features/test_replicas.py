"""Replicas on a private Ray cluster: order, back-pressure, a lost replica, nothing left behind."""

import os

import numpy as np
import psutil
import pytest
import torch

from outrider.common import process_tree
from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.data.features.replicas import Replicas
from outrider.serving.engine import AskedRow
from outrider.speculators.features import FINAL_NORM
from tests.data.features.recorded_replica import (
    CANARY,
    SETUP,
    SPEC,
    RecordedReplica,
    plan,
    states_of,
)

pytest.importorskip("ray")

LOCAL = ClusterConfig(address="local", capture_replicas=2, cores_per_replica=1, object_store_gb=0.1)


def replicas_of(session, config=LOCAL, setup=SETUP):
    return Replicas(session, config, setup, 1000, actor=RecordedReplica)


def bits(rows):
    return {row.row_id: row.states[FINAL_NORM].view(torch.int16).numpy() for row in rows}


def test_pieces_come_in_order_within_the_limit_and_a_killed_replica_loses_nothing():
    asked = plan(12)
    each = max(piece.nbytes(SPEC) for piece in asked)
    with open_cluster(LOCAL, cpus=2) as session, replicas_of(session) as replicas:
        mark, folder = os.environ[process_tree.MARK].split(":")[-1], session.folder
        checks = replicas.checks()
        assert {len(replicas.answer([AskedRow("a", [3], 0.6, 0.95, 5)])[0])} == {5}
        seen, most = [], 0
        # Any order, repeats included.
        order = [*asked[6:], *asked[:6], asked[0]]
        for piece, rows in replicas.stream(order, 4 * each):
            seen.append(piece.index)
            most = max(most, replicas.watermarks.in_flight_bytes)
            if len(seen) == 3:
                psutil.Process(next(iter(checks.values()))["pid"]).kill()
            expected = {row.row_id: states_of(row.token_ids) for row in piece.rows}
            found = bits(rows)
            assert list(found) == piece.row_ids
            assert all(np.array_equal(found[name], expected[name]) for name in expected)
            assert rows[0].scores == [[1.0], [2.0]]
        assert seen == [piece.index for piece in order]
        assert most <= replicas.watermarks.peak_bytes <= 4 * each
        assert replicas.watermarks.lost_replicas == 1
        assert replicas.watermarks.in_flight_bytes == 0
        listening = {
            connection.laddr.ip
            for process in process_tree.members(mark)
            for connection in process.net_connections()
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening and all(ip.removeprefix("::ffff:") == "127.0.0.1" for ip in listening)
        logged = "".join(
            path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()
        )
        assert logged and str(CANARY) not in logged
    assert not folder.exists()
    assert not process_tree.members(mark)
