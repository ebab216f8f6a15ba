"""Inspection of small logs with defects agrees with an ingest and shows no customer text."""

import json

import pytest

from outrider.data.config import SplitConfig, TrafficConfig
from outrider.data.ingest.inspection import advise, inspect_log
from outrider.data.ingest.traffic_facts import traffic_facts
from outrider.data.sequences import load_sequences
from tests.data.logs import pair, screenings, write_log

SECRET = "Ada Lovelace, born 1815"


DAMAGED = [
    b'{"request": {"messages": [{"content": "' + SECRET.encode() + b'"',
    {"request": {"messages": [{"role": "user", "content": SECRET}]}, "response": None},
    {"request": {"messages": [{"role": "user", "content": SECRET}]}, "response": None},
]


@pytest.fixture
def look_at(text_target, tmp_path):
    def inspected(rows_per_file=None, **logs):
        for name, rows in logs.items():
            write_log(tmp_path / f"{name}.jsonl", rows)
        config = TrafficConfig(path=str(tmp_path / "*.jsonl"))
        return inspect_log(
            text_target, config, SplitConfig(), tmp_path / "scratch", rows_per_file=rows_per_file
        )

    return inspected


def test_a_damaged_log_is_described_and_its_problem_said(look_at, tmp_path):
    sessions = daily(30, request__metadata__session_id=lambda index: f"s{index // 2}")
    description = look_at(log=[DAMAGED[0], *sessions, *DAMAGED[1:]])
    assert description["rejects"] == {"incomplete_pair": 2, "not_json": 1}
    assert description["reject_examples"]["incomplete_pair"] == {
        "place": f"{tmp_path}/log.jsonl:32",
        "detail": "no response",
    }
    (problem,) = description["problems"]
    assert (
        "3 of 33 rows rejected (incomplete_pair 2, not_json 1). That is 9.1%" in problem
        and "scratch" not in problem
    )
    assert "Ada" not in json.dumps(description)


def daily(count, **fields):
    """Three exchanges in a row, every day."""
    return [
        pair(
            messages,
            reasoning,
            answer,
            timestamp=1_714_564_800 + 86_400 * (index // 3) + 60 * (index % 3),
            **{name: value(index) for name, value in fields.items()},
        )
        for index, (messages, reasoning, answer) in enumerate(screenings(count))
    ]


def test_users_are_cut_into_sessions_and_small_traffic_is_named(look_at):
    fields = {
        "request__metadata": lambda index: None,
        "request__user": lambda index: f"user-{index // 3 % 4}",
    }
    description = look_at(log=daily(60, **fields))
    assert (
        description["sessions"]["exchanges"] == {"user": 60}
        and description["sessions"]["distinct"] == 4
    )
    assert (
        description["split"]["left_out"] == {} and description["split"]["heldout"]["sessions"] == 4
    )
    small, *_ = description["advice"]
    assert "at least 5 held-out sessions, about 25 in the log" in small and "about 150" in small


CHOICE = {
    "index": 0,
    "message": {"reasoning": "so\n", "content": "yes"},
    "finish_reason": "stop",
}


def test_the_first_rows_of_two_halves(look_at):
    requests = [
        {
            "id": f"r{number}",
            "model": "r1",
            "messages": [{"role": "user", "content": f"question {number}"}],
            "user": f"u{number}",
        }
        for number in range(40)
    ]
    responses = [
        {"id": f"chatcmpl-r{number}", "model": "r1", "created": 1000 + number, "choices": [CHOICE]}
        for number in reversed(range(40))
    ]
    description = look_at(rows_per_file=30, requests=requests, responses=responses)
    # 0 to 29 are requests, 39 to 10 are responses: the other halves follow the rows that were read.
    assert (description["rows"], description["exchanges"], description["joined"]) == (60, 20, 20)
    assert description["rejects"] == {"beyond_first": 20} and description["problems"] == []
    assert set(description["reject_examples"]) == {"beyond_first"}


@pytest.fixture
def counted(look_at, tmp_path):
    """Inspects exchanges of 60 sessions, the counts of some of which are wrong."""
    look_at(log=daily(60))
    table = load_sequences(tmp_path / "scratch" / "sequences")
    starts = table["completion_start"][:]
    lengths = list(map(len, table["token_ids"][:]))

    def inspected(wrong_prompts, wrong_completions):
        def usage(index):
            prompt = starts[index]
            completion = lengths[index] - starts[index]
            return {
                "prompt_tokens": prompt + (index < wrong_prompts),
                "completion_tokens": completion + (index < wrong_completions),
            }

        return look_at(log=daily(60, response__usage=usage))

    return inspected


def test_a_log_of_another_model_is_said_to_be_one(counted):
    description = counted(wrong_prompts=31, wrong_completions=20)
    wrong = description["wrong_target"]
    assert wrong.startswith("this target has probably not written this log (model in the log: nano")
    assert "31 of the 60 sequences with a logged token count" in wrong
    assert "another chat template" in wrong  # most completions have the logged length
    assert "chat template" not in counted(60, 60)["wrong_target"]
    assert not [
        text for text in description["advice"] if "tokenized again" in text or "prompts" in text
    ]
    assert counted(30, 30)["wrong_target"] is None


def test_advice_on_token_counts_only_where_some_differ(counted, look_at):
    assert counted(0, 0)["advice"] == []
    prompts, completions = counted(3, 2)["advice"]
    assert "3 of 60 prompts" in prompts and "2 of the 60 with a logged count differ" in completions
    (uncounted,) = look_at(log=daily(60))["advice"]
    assert "60 of 60 exchanges have no token ids" in uncounted and "differ" not in uncounted
    assert "return_token_ids" in uncounted


@pytest.mark.parametrize(
    ("name", "said", "not_said"),
    [
        ("openai_pairs", "send `return_token_ids: true`", "log at vLLM"),
        ("litellm", "LiteLLM does not keep token ids: to have", "return_token_ids"),
        ("helicone", "Helicone does not keep token ids", "return_token_ids"),
        ("langfuse", "Langfuse does not keep token ids", "return_token_ids"),
        ("otel_genai", "OpenTelemetry does not keep", "return_token_ids"),
        ("messages", "(capture.min_on_policy)", "To "),
    ],
)
def test_the_remedy_is_one_that_the_log_s_producer_has(name, said, not_said):
    summary = {
        "fidelity": {"retokenized": 3},
        "exchanges": 4,
        "rejects": {},
        "formats": {name: 4},
        "prompt_tokens_against_usage": {},
        "retokenized_against_usage": {"different": 1},
        "sequences_against_usage": {"different": 1, "equal": 1},
    }
    (advice,) = advise(summary, None, SplitConfig())
    assert said in advice and not_said not in advice


def test_rows_with_hard_labels_are_counted_and_what_vllm_refuses_is_named(look_at):
    formats = [{"type": "json_object"}, None, None]
    fields = {
        "request__response_format": lambda index: formats[index % 3],
        "request__min_p": lambda index: 0.1 * (index % 3 == 1),
        "request__use_beam_search": lambda index: index == 59,
    }
    description = look_at(log=daily(60, **fields))
    assert description["constraints"] == {"grammar": 20, "min_p": 20}
    assert description["rejects"] == {"beam_search": 1}
    (text,) = [text for name, text in traffic_facts(description) if name == "constraints"]
    assert text.startswith("40 exchanges sampled otherwise (grammar 20, min_p 20): 20 with a")
    aside, refused = description["advice"][-2:]
    assert "1 of 60 exchanges are set aside" in aside and "beam_search 1" in aside
    assert refused.startswith("20 exchanges were sampled with min_p 20; vLLM 0.32 rejects")


def test_a_log_of_no_known_format_ends_with_the_next_step(look_at):
    (problem,) = look_at(log=[{"question": "x", "answer": "y"}])["problems"]
    assert "no usable row" in problem and "max_reject_fraction" not in problem
    assert "openai_pairs" in problem and problem.endswith('"content": "..."}]}')
