"""Captured states belong to their request and are what transformers computes.

Their log-probabilities are compared with the engine's by every capture (engine_checks.py), and
tests/serving/test_other_speculators.py reads those of a served EAGLE-3 drafter.
"""

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from vllm import SamplingParams
from vllm.model_executor.models.interfaces import SupportsEagle3

from outrider.common.errors import OutriderError
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import open_engine
from outrider.serving.vllm_hooks.capture_extension import (
    PART,
    AuxiliaryStates,
    _digest,
    _Prompt,
    read_states,
    write_states,
)
from outrider.speculators.features import FINAL_NORM, layer_name

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engine(nano_r1):
    """As the engine of the other files, with all of the embedded target's layers."""
    engine = EngineConfig(max_num_batched_tokens=96)
    with open_engine(TargetConfig(model=str(nano_r1)), engine) as opened:
        yield opened


@pytest.fixture(scope="module")
def rows(engine, prompts):
    """Prompts with the target's responses: on-policy, some longer than a step's 96 tokens."""
    outputs = engine.llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        SamplingParams(temperature=0.0, max_tokens=160),
        use_tqdm=False,
    )
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    rows = [
        (f"row {i}", prompt + answer)
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    return [*rows, ("one token", prompts[0][:1]), ("twice", rows[0][1]), ("cut", rows[1][1][:-5])]


LAYERS = [1, 2, 8, 13, 16]
"""Before some of nano R1's 16 layers, and after the last."""
STREAMS = [FINAL_NORM, *map(layer_name, LAYERS)]


@pytest.fixture(scope="module")
def streams(engine, rows):
    """The states of each row by stream."""
    prefilled = engine.prefill(rows, STREAMS[::-1], 400)
    return {name: states.streams for (name, _), states in prefilled}


@pytest.fixture(scope="module")
def computed(nano_r1, rows):
    """transformers' states of each row in float32: after the final norm, and of every layer."""
    reference = AutoModelForCausalLM.from_pretrained(nano_r1, dtype=torch.float32).eval()
    found: dict[str, torch.Tensor] = {}

    def keep(index: int, output: Any) -> None:
        state_BTH = output[0] if isinstance(output, tuple) else output
        found[layer_name(index)] = state_BTH.view(-1, state_BTH.shape[-1])

    for index, layer in enumerate(reference.model.layers, start=1):
        layer.register_forward_hook(lambda _, __, output, index=index: keep(index, output))
    states = {}
    with torch.inference_mode():
        for name, ids in rows:
            final_TH = reference.model(torch.tensor([ids])).last_hidden_state[0]
            states[name] = {FINAL_NORM: final_TH, **found}
    return states


def agree(
    served: dict[str, dict[str, torch.Tensor]],
    computed: dict[str, dict[str, torch.Tensor]],
    stream: str,
    other: str,
) -> bool:
    """Whether `stream` as served is `other` as computed, up to bf16.

    Seen: mean error 0.003 for layer 1, 0.014 for layer 16. Where rounding changes the routing,
    single tokens differ much, so the largest error has no bound.
    """
    errors = []
    cosines = []
    for name, states in computed.items():
        expected_TH = states[other]
        served_TH = served[name][stream].float()
        errors.append((served_TH - expected_TH).norm(dim=-1) / expected_TH.norm(dim=-1))
        cosines.append(torch.cosine_similarity(served_TH, expected_TH, dim=-1))
    return bool(torch.cat(errors).mean() < 0.05 and torch.cat(cosines).quantile(0.01) > 0.98)


@pytest.mark.parametrize("stream", STREAMS)
def test_the_served_target_computes_what_transformers_computes(streams, computed, stream):
    assert list(streams["row 0"]) == STREAMS[::-1]
    assert agree(streams, computed, stream, stream)
    for other in {*map(layer_name, range(1, 17)), FINAL_NORM} - {stream}:
        assert not agree(streams, computed, stream, other), other
    shifted = {name: {stream: states[stream].roll(1, 0)} for name, states in streams.items()}
    assert not agree(shifted, computed, stream, stream)


def test_what_cannot_be_captured_is_named_and_the_engine_goes_back(engine, rows):
    for row, stream, error, message in (
        (rows[0], "last", OutriderError, "stream 'last': not a state of the target"),
        (rows[0], "layer_17", Exception, "this model has the states of 1 to 16"),
        (("long", [5] * 2048), FINAL_NORM, OutriderError, "sequence long: 2048 tokens"),
    ):
        with pytest.raises(error, match=message):
            list(engine.prefill([row], [stream]))
    assert len(list(engine.prefill(rows[:2]))) == 2


def test_the_next_batch_is_prefilled_while_the_states_of_one_are_read(engine, rows, streams):
    reading = engine.prefill(iter(rows), batch_tokens=400)
    (name, _), first = next(reading)
    ahead = engine._ahead
    assert ahead is not None and ahead.exception(timeout=60) is None  # without another row read
    while not list(engine._scratch.glob("*.bf16")):
        time.sleep(0.01)
    # Bounded: the file that is being read is gone, and one batch is ahead.
    assert len(list(engine._scratch.iterdir())) == 1
    states = {name: first} | {name: later for (name, _), later in reading}
    assert list(states) == [name for name, _ in rows]
    assert [of_row.token_ids.tolist() for of_row in states.values()] == [ids for _, ids in rows]
    assert list(engine._scratch.iterdir()) == []
    for name, expected in streams.items():
        served_TH = states[name].hidden.float()
        expected_TH = expected[FINAL_NORM].float()
        assert torch.cosine_similarity(served_TH, expected_TH, dim=-1).mean() > 0.999


def test_states_may_be_left_halfway(engine, rows):
    reading = engine.prefill(rows, batch_tokens=400)
    next(reading)
    reading.close()
    assert len(engine.prompt_logprobs(rows[:2])) == 2
    assert len(list(engine.prefill(rows[:2]))) == 2


def test_states_that_cannot_be_written_end_the_capture_with_the_reason(tmp_path):
    path = tmp_path / "states.bf16"
    path.with_suffix(PART).mkdir()  # in place of a full disk
    write_states(path, [torch.zeros(1, 3, 2, dtype=torch.bfloat16)])
    with pytest.raises(OutriderError, match=r"the states were not written: .*File exists"):
        next(read_states([None, {"path": str(path), "requests": {}}], []))


def test_states_are_freed_as_they_are_written_and_read_in_any_order(tmp_path):
    whole = {"a": torch.randn(2, 3, 5).bfloat16(), "b": torch.randn(2, 1, 5).bfloat16()}
    path = tmp_path / "states.bf16"
    written = list(whole.values())
    write_states(path, written)
    assert written == []
    requests = {name: [list(whole[name].shape), _digest([7]), None] for name in whole}
    index = {"path": str(path), "requests": requests}
    read = [states for states, _ in read_states([None, index], [("b", [7]), ("a", [7])])]
    assert read[0].equal(whole["b"]) and read[1].equal(whole["a"]) and not path.exists()
    write_states(path, list(whole.values()))
    with pytest.raises(OutriderError, match="prefilled tokens other than"):
        next(read_states([index], [("a", [8])]))


def test_chunks_and_a_restart_after_preemption_fill_every_stream_once():
    """A preempted prompt is computed again from its start; answers are computed after it."""
    whole_STH = torch.randn(2, 7, 3).bfloat16()
    answer_SNH = torch.full((2, 2, 3), float("nan")).bfloat16()
    prompt = _Prompt(list(range(7)), 2, 3)
    for start, stop in ((0, 2), (2, 5), (0, 4), (4, 6)):
        prompt.put(start, list(whole_STH[:, start:stop]))
    assert prompt.filled == 6
    prompt.put(6, list(torch.cat([whole_STH[:, 6:], answer_SNH], dim=1)))
    assert prompt.filled == prompt.length == 7 and prompt.states_STH.equal(whole_STH)
    with pytest.raises(RuntimeError, match="positions 0 to 2 were never computed"):
        _Prompt(list(range(7)), 2, 3).put(3, list(whole_STH[:, 3:]))


class Model(torch.nn.Module, SupportsEagle3):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Identity()

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        self.model.aux_hidden_state_layers = layers


def runner(
    served: tuple[int, ...] = (),
    model: Any = None,
    stages: int = 1,
    eager: bool = True,
    drafter: object = None,
) -> SimpleNamespace:
    """A model runner; `served` are the layers of its EAGLE-3 drafter."""
    model = model or Model()
    if served:
        model.set_aux_hidden_state_layers(served)
    return SimpleNamespace(
        get_model=lambda: model,
        use_aux_hidden_state_outputs=bool(served),
        speculative_config=drafter or served or None,
        vllm_config=SimpleNamespace(
            parallel_config=SimpleNamespace(pipeline_parallel_size=stages),
            model_config=SimpleNamespace(
                enforce_eager=eager, get_total_num_hidden_layers=lambda: 6
            ),
        ),
    )


@pytest.mark.parametrize(
    ("model_runner", "layers", "message"),
    [
        (runner(stages=2), [2], "capture with pipeline_parallel_size 1"),
        (runner(), [0], "this model has the states of 1 to 6"),
        (runner(), [2, 7], "this model has the states of 1 to 6"),
        (
            runner(model=torch.nn.Linear(1, 1)),
            [2],
            "vLLM's Linear does not expose hidden states of its layers",
        ),
        (runner(served=(2, 3)), [2, 4], r"reads layers \[2, 3\]; .* cannot return layers \[4\]"),
        (runner(drafter=object()), [2], "drafter would read the states"),
        (runner(eager=False), [2], "a compiled model cannot change"),
    ],
)
def test_an_engine_that_cannot_return_them_is_refused(model_runner, layers, message):
    with pytest.raises(RuntimeError, match=message):
        AuxiliaryStates(model_runner, layers)
