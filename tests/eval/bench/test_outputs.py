"""The verification pass: which prompts every variant and the controls get, and what is kept."""

from types import SimpleNamespace

import pytest

from outrider.common.fingerprint import CachedResult
from outrider.eval.bench import outputs as module
from outrider.eval.bench.outputs import CONTROL_PROMPTS, collect_outputs
from outrider.eval.bench.prompts import HeldoutRequests, Prompt
from outrider.eval.config import EvalConfig
from outrider.eval.results.parts import Drafters
from outrider.serving.client import Completion, Sampling, SpeculationCounters
from outrider.serving.config import EngineConfig, ServingConfig

PROMPTS = [[1, number] for number in range(6)]
COUNTED = SpeculationCounters(
    drafts=2, draft_tokens=4, accepted_tokens=2, accepted_per_position=(1, 1), generation_tokens=3
)


class Endpoint:
    """Answers completions with the prompt's last token."""

    url = model_name = "tiny"

    def __init__(self):
        self.spoils = lambda prompt: False
        self.asked = []

    def complete(self, *, prompts, fields, **_):
        assert fields == [{}] * len(prompts)
        self.asked = [prompt[-1] for prompt in prompts]
        return [
            Completion([prompt[-1], 9 if self.spoils(prompt) else 7, 8], COUNTED)
            for prompt in prompts
        ]


@pytest.fixture
def endpoint(monkeypatch):
    running = Endpoint()
    monkeypatch.setattr(module, "complete", running.complete)
    return running


def context_in(folder):
    return SimpleNamespace(
        settings=EvalConfig(engine_modes=["eager"], verification_max_tokens=16),
        serving=ServingConfig(engine=EngineConfig(max_num_seqs=2)),
        cached_measurement=lambda name, model, work: model.model_validate(
            CachedResult(folder / f"{name}.json", "").run(lambda: work().model_dump(mode="json"))
        ),
        say=lambda line: None,
    )


class Asked:
    """Servers that are all the endpoint; `variants` are those that were asked for."""

    def __init__(self, endpoint, apart=False):
        self.endpoint = endpoint
        self.apart = apart
        self.variants = []

    def groups(self, turns):
        return [turns[:1], turns[1:]] if self.apart else [turns]

    def prepare(self, mode, turns):
        assert dict(turns) == {"none": None, "base": 2, "custom": 3}

    def server(self, mode, variant, drafts):
        self.variants.append(variant)
        return self.endpoint


REQUESTS = HeldoutRequests(
    Sampling(),
    [
        Prompt(sequence_id=str(ids[-1]), session="s", user="", token_ids=ids, text="")
        for ids in PROMPTS
    ],
    [],
)
K = Drafters[int](base=2, custom=3)


def test_the_control_has_few_prompts_unless_a_response_differs(endpoint, tmp_path):
    """In other batches: in reverse order, with half as many in flight."""
    servers = Asked(endpoint)
    outputs = collect_outputs(context_in(tmp_path / "equal"), servers, "eager", K, REQUESTS)
    assert servers.variants[-2:] == ["custom", "none"]
    assert endpoint.asked == [3, 2, 1, 0] and len(endpoint.asked) == CONTROL_PROMPTS
    assert outputs.control.token_ids == outputs.greedy.none.token_ids[:CONTROL_PROMPTS]
    assert outputs.repeated == outputs.control
    assert outputs.greedy.none.counters == SpeculationCounters(
        drafts=12,
        draft_tokens=24,
        accepted_tokens=12,
        accepted_per_position=(6, 6),
        generation_tokens=18,
    )

    spoilt = iter(range(1000))
    endpoint.spoils = lambda prompt: next(spoilt) == 8  # in base's greedy pass
    outputs = collect_outputs(context_in(tmp_path / "other"), servers, "eager", K, REQUESTS)
    assert outputs.greedy.base != outputs.greedy.none and len(outputs.control.token_ids) == 6

    # Where servers alternate nothing is known of base and custom yet.
    endpoint.spoils = lambda prompt: False
    apart = Asked(endpoint, apart=True)
    outputs = collect_outputs(context_in(tmp_path / "apart"), apart, "eager", K, REQUESTS)
    assert len(outputs.control.token_ids) == 6
