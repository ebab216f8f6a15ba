"""Metrics and log of a controller, in the endpoint's folder."""

import json
from pathlib import Path

from outrider.live.metrics import LOG, METRICS, reporting
from tests.live.manifest_endpoint import endpoint


def test_events_are_in_both_and_the_log_goes_on(tmp_path: Path) -> None:
    resume = endpoint(tmp_path)
    for percent in (5.0, 25.0):
        with reporting(resume) as events:
            events.share(percent)
    lines = (resume.state_dir / LOG).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["percent"] for line in lines] == [5.0, 25.0]
    text = (resume.state_dir / METRICS).read_text(encoding="utf-8")
    assert 'outrider_canary_share_ratio{endpoint="resume_eu"} 0.25' in text
