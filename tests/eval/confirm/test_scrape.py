"""Counts of vLLM's /metrics: recorded texts, replicas, windows, restarts, and anything else."""

import random
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.common.errors import OutriderError
from outrider.eval.confirm.scrape import MetricsWindow, Scrape, check_distinct, read_scrape
from outrider.serving.client import read_counters
from tests.eval.confirm.served import RECORDED, recorded, rewritten, scrape_of
from tests.fuzzing import examples

FIRST, SECOND = str(RECORDED / "k3_first.txt"), str(RECORDED / "k3_second.txt")
OTHER = str(RECORDED / "k2_second.txt")


def test_counts_since_the_start() -> None:
    window = MetricsWindow([read_scrape(SECOND)])
    assert window.requests == 48
    assert window.k == window.most_drafts == 3
    # 1,920 tokens, of which 48 are first ones, in 950 steps.
    assert window.acceptance_length == pytest.approx(1872 / 950)
    assert window.tpot_ms == pytest.approx(67174.45 / 1872, rel=1e-6)
    assert window.load == pytest.approx((950 + 48) / 386)
    assert window.prompt_tokens == pytest.approx(2340 / 48)
    assert window.response_tokens == 40
    assert window.prefix_hits == 0
    assert window.accepted_by_position == [515, 305, 153]
    assert window.first_token_ms(0.5) == (100, 250)


def test_counts_since_an_earlier_scrape() -> None:
    window = MetricsWindow([read_scrape(SECOND).since(read_scrape(FIRST))])
    assert window.requests == 24
    assert window.response_tokens == 32
    # The pass had eight requests at once until the last ones ended.
    assert window.load is not None and 5 < window.load < 8
    first = MetricsWindow([read_scrape(FIRST)])
    assert first.load is not None and 1.5 < first.load < 2
    assert first.steps + window.steps == 950


def test_length_at_fewer_drafts() -> None:
    """At the engine's own K nothing is cut off, and without drafts one token a step is left."""
    window = MetricsWindow([read_scrape(SECOND)])
    lengths = [window.length_at(k) for k in range(4)]
    assert lengths[3] == window.acceptance_length
    assert lengths == sorted(lengths)
    assert lengths[1] == pytest.approx(window.acceptance_length * (950 + 515) / (950 + 973))


def test_replicas_are_summed() -> None:
    servers = [read_scrape(SECOND), read_scrape(OTHER)]
    pooled, parts = MetricsWindow(servers), [MetricsWindow([server]) for server in servers]
    assert pooled.requests == sum(part.requests for part in parts)
    assert pooled.steps == sum(part.steps for part in parts)
    assert 2 < pooled.k < 3
    loads = [part.load or 0 for part in parts]
    # A replica's load is not that of all replicas.
    assert pooled.load is not None and min(loads) < pooled.load < max(loads)


def test_engines_of_a_server_run_at_once(tmp_path: Path) -> None:
    text = recorded("k3_second")
    lines = [line for line in text.splitlines() if 'engine="0"' in line]
    both = "\n".join([text, *(line.replace('engine="0"', 'engine="1"') for line in lines)])
    one, two = (
        MetricsWindow([read_scrape(SECOND)]),
        MetricsWindow([scrape_of(both, tmp_path / "both.txt")]),
    )
    assert two.requests == 2 * one.requests
    assert two.acceptance_length == pytest.approx(one.acceptance_length)
    assert one.load is not None and two.load == pytest.approx(2 * one.load)


def test_several_api_servers_count_a_step_more_than_once(tmp_path: Path) -> None:
    """Their counts have no load: that of the scrape's moment is taken."""
    text = recorded("two_frontends")
    # 575 iterations in the two passes that took one API server 386.
    assert MetricsWindow([scrape_of(text, tmp_path / "idle.txt")]).load is None
    labels = 'vllm:num_requests_running{engine="0",model_name="short_r1"}'
    scrape = scrape_of(rewritten(text, {labels: 5}), tmp_path / "busy.txt")
    window = MetricsWindow([scrape])
    assert window.load == 5
    assert window.acceptance_length == pytest.approx((1897 - 48) / 923)
    assert (window.k, window.requests) == (3, 48)
    check_distinct([scrape, scrape])  # vLLM does not report when these counters began


@given(order=st.randoms(use_true_random=False), timestamps=st.booleans())
@examples(10)
def test_text_that_prometheus_relabeled(
    order: random.Random, timestamps: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Federation drops the types, adds labels and times, and has its own order."""
    lines = [line for line in recorded("k3_second").splitlines() if not line.startswith("#")]
    end = " 1795878526151" if timestamps else ""
    lines = [
        re.sub(r"^(vllm:\w+)\{", r'\1{instance="10.0.0.7:8000",job="vllm",', line) + end
        for line in lines
    ]
    order.shuffle(lines)
    path = tmp_path_factory.mktemp("federated") / "scrape.txt"
    seen, plain = (
        MetricsWindow([scrape_of("\n".join(lines), path)]),
        MetricsWindow([read_scrape(SECOND)]),
    )
    assert seen.acceptance_length == plain.acceptance_length
    assert (seen.k, seen.load, seen.tpot_ms) == (plain.k, plain.load, plain.tpot_ms)


@pytest.mark.parametrize(
    ("now", "then"),
    [(FIRST, SECOND), (SECOND, OTHER), (OTHER, FIRST)],
    ids=["counters fell", "another server", "restarted with another K"],
)
def test_a_restart_between_two_scrapes(now: str, then: str) -> None:
    with pytest.raises(OutriderError, match=r"restarted in between.*Leave --since out"):
        read_scrape(now).since(read_scrape(then))


def test_one_server_is_not_two_replicas() -> None:
    with pytest.raises(OutriderError, match=r"same server.*--since"):
        check_distinct([read_scrape(FIRST), read_scrape(SECOND)])
    check_distinct([read_scrape(SECOND), read_scrape(OTHER)])


SGLANG = """# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="r1"} 3.0
sglang:generation_tokens_total{model_name="r1"} 300.0
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no vllm:generation_tokens_total, but nothing that can be read"),
        (SGLANG, "but sglang:num_running_reqs"),
        ("<!doctype html>\n<html><body>404</body></html>", "not the text of /metrics"),
        ('{"detail": "Not Found"}', "not the text of /metrics"),
        ("HTTP/1.1 200 OK\ncontent-type: text/plain\n\n" + recorded("k3_first"), "not the text"),
        (recorded("k3_first") * 2, "twice with the same labels"),
        (recorded("k3_first").partition("# HELP vllm:request_prompt")[0], "the text is cut"),
        (recorded("k3_first").replace("} 1152.0", "} NaN"), "no count can be"),
        (recorded("k3_first").replace('position="1"', 'position="x"'), "bucket or position"),
        (
            recorded("k3_first") + 'vllm:generation_tokens_total{engine="0",model_name="b"} 3.0\n',
            "several models, b, short_r1; choose one with --model",
        ),
    ],
)
def test_other_texts_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(OutriderError) as refused:
        scrape_of(text, tmp_path / "scrape.txt")
    assert str(refused.value).startswith(f"{tmp_path}/scrape.txt: ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_one_of_several_models_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "both.txt"
    text = recorded("k3_first")
    lines = [line for line in text.splitlines() if 'model_name="short_r1"' in line]
    path.write_text("\n".join([text, *(line.replace("short_r1", "b") for line in lines)]))
    assert read_scrape(str(path), "b").model == "b"
    with pytest.raises(OutriderError, match="no model c, but b, short_r1; correct --model"):
        read_scrape(str(path), "c")


@pytest.mark.parametrize("write", [Path.mkdir, lambda path: path.write_bytes(b"\xff\xfe\0a")])
def test_files_that_are_no_text(write: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "scrape"
    write(path)
    with pytest.raises(OutriderError, match=r"cannot be read|not UTF-8"):
        read_scrape(str(path))
    with pytest.raises(OutriderError, match=r"localhost:8000: no such file.*http://HOST:8000"):
        read_scrape("localhost:8000")


@given(data=st.data())
@examples(60)
def test_damaged_text_is_read_or_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = recorded("k3_first")
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(begin + 60, len(text))))
    damaged = text[:begin] + data.draw(st.text(max_size=8)) + text[end:]
    if data.draw(st.booleans()):
        damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    path = tmp_path_factory.mktemp("damaged") / "scrape.txt"
    try:
        window = MetricsWindow([scrape_of(damaged, path)])
    except OutriderError as refused:
        assert "\n" not in str(refused)
    else:
        assert window.requests >= 0 and window.most_drafts >= 0


@pytest.fixture
def address() -> Iterator[str]:
    """A server with /metrics, and with a page of another kind at /page/metrics."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = {"/metrics": recorded("k3_second"), "/page/metrics": "<html>"}.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write((body or "no such page").encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("path", ["", "/", "/metrics", "/metrics/", "/v1", "/v1/"])
def test_addresses(address: str, path: str) -> None:
    scrape: Scrape = read_scrape(address + path)
    counters = read_counters(address)
    window = MetricsWindow([scrape])
    assert tuple(window.accepted_by_position) == counters.accepted_per_position
    assert window.steps == counters.drafts  # an MTP layer drafts in every step


@pytest.mark.parametrize(
    ("path", "message"),
    [("/page", "not the text of /metrics"), ("/gone", "404"), (":x", "no metrics")],
)
def test_wrong_addresses(address: str, path: str, message: str) -> None:
    with pytest.raises(OutriderError, match=message):
        read_scrape(address + path)
