"""The plan of the recorded traffic, and the recordings that are shipped."""

import gzip

import pytest

from tests.shipped_traffic import logged_rows
from tools.nano_r1.record import SPAN_S, START, WITH_TOKEN_IDS, WORKLOADS, arrivals


@pytest.mark.parametrize("name", WORKLOADS)
def test_recordings_are_whole_and_a_part_has_token_ids(name):
    rows = list(logged_rows(name))
    assert len(rows) == WORKLOADS[name].exchanges
    times = [row["timestamp"] for row in rows]
    assert times == sorted(times) and times[0] >= START and times[-1] <= START + SPAN_S
    assert all(
        row["request"]["temperature"] == 0.6 and row["request"]["top_p"] == 0.95 for row in rows
    )
    assert len({row["session_id"] for row in rows}) > len(rows) / 10
    asked = [row for row in rows if row["request"].get("return_token_ids")]
    assert abs(len(asked) / len(rows) - WITH_TOKEN_IDS) < 0.06
    for row in rows:
        ids = row["response"]["choices"][0].get("token_ids")
        assert bool(ids) == (row in asked)


def test_arrivals_follow_the_trace(tmp_path):
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:15:{second:02d}.6805900,374,44" for second in (0, 1, 5, 30)]
    with gzip.open(tmp_path / "AzureLLMInferenceTrace_conv.csv.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    assert arrivals(tmp_path, 4) == pytest.approx(
        [START, START + SPAN_S / 30, START + SPAN_S / 6, START + SPAN_S]
    )
