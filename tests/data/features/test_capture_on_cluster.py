"""Capture on replicas with real engines: byte for byte the store of one process."""

import os
import threading
import time

import pytest

from outrider.common import process_tree
from outrider.common.cluster.config import ClusterConfig
from outrider.common.files import read_json
from outrider.data.config import CaptureConfig, SplitConfig, TrafficConfig
from outrider.data.features.capture import capture
from outrider.data.features.feature_store import JOURNAL
from outrider.data.ingest.ingest import ingest
from outrider.data.split.split import split
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.speculators.features import FeatureSpec, FeatureStream
from tests.data.logs import pair, screenings, write_log

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(3600)]

ENGINE = EngineConfig(max_num_batched_tokens=512, environment={"VLLM_CPU_OMP_THREADS_BIND": "0"})
SMALL = CaptureConfig(batch_tokens=1500).model_copy(
    update={"shard_megabytes": 0.5, "self_check_sequences": 3}
)
FEATURES = FeatureSpec((FeatureStream("layer_2", 192),))
CLUSTER = ClusterConfig(
    address="local",
    capture_replicas=2,
    cores_per_replica=1,
    in_flight_gb=0.01,
)


@pytest.fixture(scope="module")
def traffic(nano_r1, tmp_path_factory):
    """60 exchanges of invented résumé screenings, a session each, up to their parts."""
    folder = tmp_path_factory.mktemp("traffic")
    rows = [
        pair(*texts, request__metadata__session_id=f"s{index}", response__created=1000 + index)
        for index, texts in enumerate(screenings(60))
    ]
    log = write_log(folder / "log.jsonl.gz", rows)
    ingest(nano_r1, TrafficConfig(path=str(log)), folder)
    split(folder / "sequences", SplitConfig(), folder)
    return folder


def run(nano_r1, traffic, out_dir, cluster=None):
    return capture(
        target=TargetConfig(model=str(nano_r1)),
        sequences_dir=traffic / "sequences",
        parts=read_json(traffic / "parts.json"),
        capture=SMALL,
        engine=ENGINE,
        out_dir=out_dir,
        features=FEATURES,
        cluster=cluster,
    )


def content(directory):
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.name.startswith(("shard-", "manifest"))
    }


def kill_a_replica(out_dir, killed):
    """kill -9 of an actor once a shard is written."""
    while not (out_dir / JOURNAL).exists() or (out_dir / JOURNAL).read_text().count("\n") < 2:
        time.sleep(0.05)
    mark = os.environ[process_tree.MARK].split(":")[-1]  # that of the open session
    living = process_tree.marked_processes(mark)
    actors = [process for process in living if "ray::CaptureReplica" in " ".join(process.cmdline())]
    killed.append(len(actors))
    actors[0].kill()


def test_two_replicas_one_killed_make_the_store_of_one_process(nano_r1, traffic, tmp_path):
    assert run(nano_r1, traffic, tmp_path / "alone")["shards"] > 3
    killed: list[int] = []
    threading.Thread(target=kill_a_replica, args=(tmp_path / "cluster", killed)).start()
    summary = run(nano_r1, traffic, tmp_path / "cluster", CLUSTER)
    assert content(tmp_path / "cluster") == content(tmp_path / "alone")
    assert killed == [2] and summary["lost_replicas"] == 1
    assert all(replica["self_check"] for replica in summary["replicas"].values())
