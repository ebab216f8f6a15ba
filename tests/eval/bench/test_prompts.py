"""Which held-out requests a scenario sends, and with which sampling."""

import itertools

import pytest
from datasets import Dataset

from outrider.common.errors import OutriderError
from outrider.eval.bench.prompts import (
    EVERYTHING,
    customers_sampling,
    mean_context,
    select_requests,
    spread_sessions,
)
from outrider.eval.config import EvalConfig, ScenarioConfig
from outrider.serving import client
from outrider.serving.client import complete
from outrider.serving.config import EngineConfig, ServingConfig

SERVING = ServingConfig(engine=EngineConfig(max_model_len=512))
# Prompts of 10, 20 ... 400 tokens; responses of 7, 14 ... 280, in another order; times in reverse.
PROMPTS = [10 * (i + 1) for i in range(40)]
RESPONSES = [7 * ((i * 11) % 40 + 1) for i in range(40)]
HELDOUT = {
    "completion_start": PROMPTS,
    "token_ids": [[0] * (p + r) for p, r in zip(PROMPTS, RESPONSES, strict=True)],
    "time": [1.7e9 - i for i in range(40)],
    "prompt_text": [f"prompt {p}" for p in PROMPTS],
}


def config(max_tokens=64, **scenarios):
    return EvalConfig(rates=[2.0], rate_seconds=5, max_tokens=max_tokens, scenarios=scenarios)


def test_without_rates_nothing_and_without_scenarios_everything_is_sent():
    assert select_requests(HELDOUT, EvalConfig(), SERVING) == []
    (everything,) = select_requests(HELDOUT, config(), SERVING)
    assert everything.name == EVERYTHING and everything.max_tokens == 64
    assert everything.texts == [f"prompt {p}" for p in reversed(PROMPTS)], "the log's order"
    assert everything.times == sorted(HELDOUT["time"])


def test_ranges_in_tokens_hold_both_ends_and_take_both_lengths():
    (chosen,) = select_requests(
        HELDOUT,
        config(a=ScenarioConfig(prompt_tokens=(100, 300), response_tokens=(70, None))),
        SERVING,
    )
    expected = [p for p, r in zip(PROMPTS, RESPONSES, strict=True) if 100 <= p <= 300 and r >= 70]
    assert {100, 300} & set(expected), "an end is among them, or the test says nothing of ends"
    assert chosen.texts == [f"prompt {p}" for p in reversed(expected)]
    assert chosen.described.requests == len(expected)


def test_quantiles_are_of_the_held_out_part():
    halves = config(
        short=ScenarioConfig(prompt_tokens=("0%", "50%")),
        long=ScenarioConfig(prompt_tokens=("50%", "100%"), max_tokens=9),
    )
    short, long = select_requests(HELDOUT, halves, SERVING)
    assert short.texts == [f"prompt {p}" for p in reversed(PROMPTS[:20])] and short.max_tokens == 64
    assert long.texts == [f"prompt {p}" for p in reversed(PROMPTS[20:])] and long.max_tokens == 9


LONG = ScenarioConfig(prompt_tokens=(250, None), max_tokens=200)


def test_prompts_that_leave_no_room_for_the_longest_answer_are_left_out():
    serving = ServingConfig(engine=EngineConfig(max_model_len=561))
    (chosen,) = select_requests(HELDOUT, config(long=LONG), serving)
    assert chosen.described.requests == 12, "250 to 360, and one token behind the longest answer"


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        (
            ScenarioConfig(prompt_tokens=(100, 140), response_tokens=("50%", "100%")),
            r"eval\.scenarios\.narrow: \d of 40 .* lie in its ranges.*\[10, 49, 205, 361, 400\]",
        ),
        (
            LONG,
            r"7 of 40 .* \(9 more exceed the 311 prompt tokens .*max_model_len leaves room\)",
        ),
    ],
)
def test_too_few_requests_are_an_error_with_the_lengths_that_there_are(scenario, message):
    with pytest.raises(OutriderError, match=message):
        select_requests(HELDOUT, config(narrow=scenario), SERVING)


def test_the_most_frequent_combination_is_sent_with_every_parameter(monkeypatch):
    logged = [{"temperature": 0.6, "top_p": 0.95, "top_k": k} for k in (0, 0, 20, 20, 20, 50, 50)]
    sent = []
    sampling = customers_sampling(Dataset.from_list(logged))

    def post(url, path, body, **_):
        sent.append(body)
        choice = {"prompt_token_ids": [1], "token_ids": [2], "text": "", "finish_reason": "stop"}
        return {"choices": [choice]}

    monkeypatch.setattr(client, "post", post)
    complete("http://localhost", "r1", [[1]], sampling, max_tokens=4)
    named = {key: sent[0][key] for key in ("temperature", "top_p", "top_k", "min_p")}
    assert named == {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0}
    assert sent[0]["repetition_penalty"] == 1.0  # the server's default may be another


def test_rows_of_a_session_are_as_far_apart_as_there_are_sessions():
    sessions = [f"s{row // 5}" for row in range(40)]
    order = spread_sessions(sessions)
    assert sorted(order) == list(range(40)) and order != list(range(40))
    for first in range(0, 40, 8):
        assert len({sessions[row] for row in order[first : first + 8]}) == 8
    # The turns of the first rows are of all of a session's.
    assert {row % 5 for row in order[:8]} == set(range(5))


def test_a_long_session_is_spread_over_the_whole_order():
    order = spread_sessions(["long"] * 20 + [f"s{row}" for row in range(20)])
    positions = [position for position, row in enumerate(order) if row < 20]
    gaps = [after - before for before, after in itertools.pairwise(positions)]
    assert max(gaps) <= 8 and positions[0] < 8 and positions[-1] >= 32


def test_timed_responses_end_where_nine_in_ten_of_the_log_do():
    settings = EvalConfig()
    assert settings.timed_like(100, 8192).max_tokens == 128
    assert settings.timed_like(128, 8192).max_tokens == 192  # the next multiple of 64
    assert settings.timed_like(30_000, 32_768).max_tokens == 4096
    assert settings.timed_like(30_000, 2048).max_tokens == 1024  # leaves room for the prompt
    assert settings.timed_like(None, 32_768).max_tokens == 4096  # before the log is read
    assert EvalConfig(max_tokens=7).timed_like(100, 8192).max_tokens == 7


def test_the_mean_context_counts_every_token():
    prompts = [3, 10]
    responses = [4, 2]
    before = [
        prompt + place
        for prompt, count in zip(prompts, responses, strict=True)
        for place in range(count)
    ]
    assert mean_context(prompts, responses) == sum(before) / len(before)
