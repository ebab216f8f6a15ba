"""An ingest by Ray tasks gives the bytes of the process pool, interrupted or not."""

import pytest

pytest.importorskip("ray")

from outrider.common.cluster.config import ClusterConfig
from outrider.common.cluster.session import open_cluster
from outrider.data.config import PrivacyConfig, TrafficConfig
from outrider.data.ingest import chunks, ingest
from tests.data.ingest.test_ingest import BAD, SECRET, good_rows
from tests.data.ingest.test_parts import digests
from tests.data.logs import write_log

LOCAL = ClusterConfig(address="local")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session():
    with open_cluster(LOCAL, cpus=2) as opened:
        yield opened


@pytest.fixture
def logs(tmp_path, monkeypatch):
    """Several files, in several chunks each, large enough for a cluster."""
    monkeypatch.setattr(chunks, "CHUNK_RECORDS", 7)
    monkeypatch.setattr(ingest, "SMALL", 0)
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in range(3):
        rows = good_rows(40)
        for index, bad in enumerate(BAD.values()):
            rows.insert(2 * index + number, bad)
        write_log(folder / f"{number}.jsonl", rows)
    return folder


def run(target, logs, out, cluster=None, workers=None, **privacy):
    traffic = TrafficConfig(path=str(logs), max_reject_fraction=0.9)
    ingest.ingest(target, traffic, out, workers, PrivacyConfig(**privacy), cluster=cluster)
    return digests(out)


def test_tasks_make_the_bytes_of_the_process_pool(session, text_target, logs, tmp_path):
    here = run(text_target, logs, tmp_path / "here", workers=0)
    assert len(here) >= 3
    assert run(text_target, logs, tmp_path / "tasks", LOCAL) == here
    answer = good_rows(1)[0]["response"]["choices"][0]["message"]["content"].strip()
    texts = [text.encode() for text in (SECRET, answer)]
    assert any(texts[0] in path.read_bytes() for path in logs.iterdir())
    left = [path for path in session.folder.rglob("*") if path.is_file()]
    assert left
    for path in left:
        assert not any(text in path.read_bytes() for text in texts), path
