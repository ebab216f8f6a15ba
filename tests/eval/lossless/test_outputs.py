"""The verification pass against a small HTTP server that fails on the way."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from outrider.common.errors import OutriderError
from outrider.eval.bench.measure import serve
from outrider.eval.bench.measurement_cache import Steps
from outrider.eval.bench.prompts import Prompt
from outrider.eval.config import EvalConfig
from outrider.eval.context import HeldoutRequests
from outrider.eval.lossless.outputs import CONTROL_PROMPTS, answers, collect
from outrider.eval.lossless.response_log import ResponseLog
from outrider.eval.results.parts import Drafters
from outrider.serving import client
from outrider.serving.client import Sampling, SpeculationCounters, request_timeout_s
from outrider.serving.config import ServingConfig

PROMPTS = [[1, number] for number in range(6)]


class Endpoint(ThreadingHTTPServer):
    """Answers completions with the prompt's last token; `fails` decides by prompt."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.model_name = "tiny"
        self.fails = lambda prompt: None
        self.spoils = lambda prompt: False
        self.asked, self.lock = [], threading.Lock()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["prompt"]
        with self.server.lock:
            self.server.asked.append(prompt[-1])
        failure = self.server.fails(prompt)
        if failure == "dies":
            self.connection.close()
            return
        ids = [prompt[-1], 9 if self.server.spoils(prompt) else 7, 8]
        choice = {
            "prompt_token_ids": prompt,
            "token_ids": ids,
            "text": "",
            "finish_reason": "stop",
        }
        counts = {
            "acceptance_histogram": [1, 0, 1],
            "num_spec_steps": 2,
            "num_draft_tokens": 4,
            "num_accepted_draft_tokens": 2,
        }
        answer = {"choices": [choice], "metrics": {"speculative_decoding": counts}}
        payload = json.dumps(answer if failure is None else {"error": "out of memory"}).encode()
        self.send_response(200 if failure is None else 500)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_):
        pass


@pytest.fixture
def endpoint():
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def answered(endpoint, path, digest="same"):
    log = ResponseLog(path, digest)
    return answers(endpoint, log, PROMPTS, range(6), Sampling(0.0, 1.0), 16, concurrency=2)


@pytest.mark.parametrize("failure", ["error", "dies"])
def test_a_failure_repeats_one_request(endpoint, tmp_path, failure):
    path = tmp_path / "responses" / "greedy_custom.jsonl"
    endpoint.fails = lambda prompt: failure if prompt[-1] == 3 else None
    with pytest.raises(OutriderError, match=r"500 .*out of memory|no answer"):
        answered(endpoint, path)
    assert sorted(set(endpoint.asked)) == [0, 1, 2, 3, 4, 5]
    assert path.stat().st_mode & 0o077 == 0

    endpoint.fails, endpoint.asked = lambda prompt: None, []
    found = answered(endpoint, path)
    assert endpoint.asked == [3]
    assert found.token_ids == [[number, 7, 8] for number in range(6)]
    # Counts of responses from before the failure are kept too.
    assert found.counters == SpeculationCounters(12, 24, 12, (6, 6), 18)
    answered(endpoint, path)
    assert endpoint.asked == [3]
    answered(endpoint, path, digest="another")
    assert len(endpoint.asked) == 7


def test_a_line_that_was_cut_is_requested_again(endpoint, tmp_path):
    path = tmp_path / "greedy_none.jsonl"
    whole = answered(endpoint, path)
    path.write_text(path.read_text()[:-9])
    endpoint.asked = []
    assert answered(endpoint, path) == whole and len(endpoint.asked) == 1
    endpoint.asked = []
    assert answered(endpoint, path) == whole and not endpoint.asked


def test_the_timeout_follows_the_longest_response_and_the_requests_in_flight(monkeypatch):
    given = []

    def post(url, path, body, timeout_s):
        given.append(timeout_s)
        choice = {"prompt_token_ids": [1], "token_ids": [2], "text": "", "finish_reason": "stop"}
        return {"choices": [choice]}

    monkeypatch.setattr(client, "post", post)
    for max_tokens, concurrency in ((400, 8), (8192, 64)):
        client.complete("", "", [[1]], Sampling(), max_tokens, concurrency)
    assert given == [request_timeout_s(400, 8), request_timeout_s(8192, 64)]
    # At 10 tokens/s of all requests together nothing is given up.
    assert given[0] >= 400 * 8 / 10 and given[1] >= 8192 * 64 / 10


def test_the_control_has_few_prompts_unless_a_response_differs(endpoint, tmp_path):
    """In other batches: in reverse order, with half as many in flight."""
    asked = []

    class Fleet:
        groups = (("none", "base", "custom"),)

        def server(self, variant):
            asked.append(variant)
            return endpoint

    prompts = [Prompt(str(ids[-1]), "s", ids, "") for ids in PROMPTS]

    def collected(digest, fleet=None):
        endpoint.asked = []
        return collect(
            fleet or Fleet(), prompts, Sampling(), 16, 2, tmp_path, digest, lambda line: None
        )

    outputs = collected("a")
    assert asked[-1] == "none" and endpoint.asked[-CONTROL_PROMPTS:] == [3, 2, 1, 0]
    assert outputs.control.token_ids == outputs.greedy.none.token_ids[:CONTROL_PROMPTS]
    assert asked[-2] == "custom" and outputs.repeated == outputs.control

    spoilt = iter(range(1000))
    endpoint.spoils = lambda prompt: next(spoilt) == 8  # in base's greedy pass
    outputs = collected("b")
    assert outputs.greedy.base != outputs.greedy.none and len(outputs.control.token_ids) == 6
    assert sorted(endpoint.asked[-6:]) == [0, 1, 2, 3, 4, 5]

    # Where servers alternate nothing is known of base and custom yet.
    endpoint.spoils = lambda prompt: False
    apart = Fleet()
    apart.groups = (("none",), ("base", "custom"))
    assert len(collected("c", apart).control.token_ids) == 6


def test_an_interrupted_evaluation_requests_only_what_is_missing(endpoint, tmp_path):
    """Through `serve`: responses are kept for the same inputs and k, and removed when all are."""
    asked: dict[str, list[int]] = {}

    class Fleet:
        groups = (("none", "base", "custom"),)

        def server(self, variant):
            endpoint.asked = asked.setdefault(variant, [])
            return endpoint

    context = SimpleNamespace(
        cache=Steps(tmp_path / "steps", {}),
        settings=EvalConfig(engine_modes=["eager"], verification_max_tokens=16),
        serving=ServingConfig(),
        folders=SimpleNamespace(out=tmp_path),
        say=lambda line: None,
    )
    context.cache.put("speed_eager", [])
    prompts = [Prompt(str(ids[-1]), "s", ids, "") for ids in PROMPTS]
    requests = HeldoutRequests(Sampling(), prompts, prompts)
    servers = SimpleNamespace(fleet=lambda mode, plan: Fleet())

    def served():
        return serve(context, servers, None, Drafters[int](base=2, custom=3), {}, requests)

    endpoint.fails = lambda prompt: (
        "dies" if prompt[-1] == 3 and endpoint.asked is asked.get("base") else None
    )
    with pytest.raises(OutriderError, match="no answer"):
        served()
    asked.clear()
    endpoint.fails = lambda prompt: None
    outputs = served().outputs
    # Greedy, none was complete and base lacked one; all of the rest, and the controls.
    assert len(asked["none"]) == 6 + CONTROL_PROMPTS and len(asked["base"]) == 1 + 6
    assert outputs.greedy.base.token_ids[3] == [3, 7, 8]
    assert not (tmp_path / "responses").exists()
    asked.clear()
    assert served().outputs == outputs and not asked


def test_what_the_server_counts_of_a_response_is_read_by_position():
    metrics = {
        "acceptance_histogram": [3, 2, 1],
        "num_spec_steps": 6,
        "num_draft_tokens": 12,
        "num_accepted_draft_tokens": 4,
    }
    found = SpeculationCounters.of_response(metrics, tokens=11)
    assert found == SpeculationCounters(6, 12, 4, (3, 1), 11)
    none = SpeculationCounters.of_response(None, tokens=5)
    assert found + none == SpeculationCounters(6, 12, 4, (3, 1), 16)
