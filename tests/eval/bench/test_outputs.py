"""The verification pass against a small HTTP server that fails on the way."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from outrider.common.errors import OutriderError
from outrider.common.fingerprint import Kept
from outrider.eval.bench.outputs import CONTROL_PROMPTS, collect
from outrider.eval.bench.prompts import HeldoutRequests, Prompt
from outrider.eval.config import EvalConfig
from outrider.eval.results.parts import Drafters
from outrider.serving.client import Sampling, SpeculationCounters
from outrider.serving.config import EngineConfig, ServingConfig

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


def context_in(folder):
    return SimpleNamespace(
        settings=EvalConfig(engine_modes=["eager"], verification_max_tokens=16),
        serving=ServingConfig(engine=EngineConfig(max_num_seqs=2)),
        cached=lambda name, model, work: model.model_validate(
            Kept(folder / f"{name}.json", "").run(lambda: work().model_dump(mode="json"))
        ),
        say=lambda line: None,
    )


class Asked:
    """Servers that are all the endpoint; `variants` are those that were asked for."""

    def __init__(self, endpoint, apart=False):
        self.endpoint, self.apart, self.variants = endpoint, apart, []

    def groups(self, turns):
        return [turns[:1], turns[1:]] if self.apart else [turns]

    def server(self, mode, variant, drafts):
        self.variants.append(variant)
        self.endpoint.asked = []
        return self.endpoint


REQUESTS = HeldoutRequests(
    Sampling(), [Prompt(str(ids[-1]), "s", "", ids, "") for ids in PROMPTS], []
)
K = Drafters[int](base=2, custom=3)


def test_the_control_has_few_prompts_unless_a_response_differs(endpoint, tmp_path):
    """In other batches: in reverse order, with half as many in flight."""
    servers = Asked(endpoint)
    outputs = collect(context_in(tmp_path / "equal"), servers, "eager", K, REQUESTS)
    assert servers.variants[-2:] == ["custom", "none"]
    assert endpoint.asked == [3, 2, 1, 0] and len(endpoint.asked) == CONTROL_PROMPTS
    assert outputs.control.token_ids == outputs.greedy.none.token_ids[:CONTROL_PROMPTS]
    assert outputs.repeated == outputs.control
    assert outputs.greedy.none.counters == SpeculationCounters(12, 24, 12, (6, 6), 18)

    spoilt = iter(range(1000))
    endpoint.spoils = lambda prompt: next(spoilt) == 8  # in base's greedy pass
    outputs = collect(context_in(tmp_path / "other"), servers, "eager", K, REQUESTS)
    assert outputs.greedy.base != outputs.greedy.none and len(outputs.control.token_ids) == 6

    # Where servers alternate nothing is known of base and custom yet.
    endpoint.spoils = lambda prompt: False
    apart = Asked(endpoint, apart=True)
    outputs = collect(context_in(tmp_path / "apart"), apart, "eager", K, REQUESTS)
    assert len(outputs.control.token_ids) == 6


@pytest.mark.parametrize("failure", ["error", "dies"])
def test_an_interrupted_verification_repeats_only_the_passes_that_are_missing(
    endpoint, tmp_path, failure
):
    servers = Asked(endpoint)
    endpoint.fails = lambda prompt: (
        failure if prompt[-1] == 3 and servers.variants[-1] == "custom" else None
    )
    with pytest.raises(OutriderError, match=r"500 .*out of memory|no answer"):
        collect(context_in(tmp_path), servers, "eager", K, REQUESTS)
    endpoint.fails, servers.variants = lambda prompt: None, []
    outputs = collect(context_in(tmp_path), servers, "eager", K, REQUESTS)
    assert servers.variants == ["custom", "none", "base", "custom", "custom", "none"]
    assert outputs.greedy.base.token_ids[3] == [3, 7, 8]
    assert collect(context_in(tmp_path), servers, "eager", K, REQUESTS) == outputs
    assert len(servers.variants) == 6
