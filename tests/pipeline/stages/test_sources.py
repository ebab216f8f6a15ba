"""The fingerprint of a log."""

from outrider.pipeline.stages.sources import log_digest


def test_a_log_is_identified_by_its_files_under_a_path_a_glob_and_a_url(tmp_path):
    (tmp_path / "a.jsonl").write_text("1")
    local, glob = log_digest(str(tmp_path)), log_digest(f"{tmp_path}/*.jsonl")
    url = log_digest(f"file://{tmp_path}")
    (tmp_path / "b.jsonl").write_text("2")
    assert log_digest(str(tmp_path)) != local
    assert log_digest(f"{tmp_path}/*.jsonl") != glob
    assert log_digest(f"file://{tmp_path}") != url
