"""Text APIs of engines and clouds, and HTTP messages in wire format."""

import base64
import json

import pytest

from outrider.data.exchange import Exchange, Reject
from outrider.data.formats.rows.embedded import plain_text
from tests.data.formats.test_elsewhere import ANSWERED, ASKED, QUESTION, STREAM, read_rows


def test_sglangs_generate_keeps_its_token_ids(tmp_path):
    asked = {"text": "Hi", "sampling_params": {"temperature": 0.5, "max_new_tokens": 9}}
    about = {
        "id": "x",
        "finish_reason": {"type": "stop", "matched": 1},
        "prompt_tokens": 2,
        "completion_tokens": 3,
    }
    answered = {"text": "abc", "output_ids": [7, 8, 1], "meta_info": about}
    short = {**answered, "output_ids": [7, 8]}
    rows = [{"request": asked, "response": answered}, {"req": asked, "resp": short}]
    whole, cut = read_rows(tmp_path, rows)
    assert isinstance(whole, Exchange) and isinstance(cut, Exchange)
    assert (whole.prompt_text, whole.prompt_is_raw, whole.temperature) == ("Hi", True, 0.5)
    assert (whole.completion_token_ids, cut.completion_token_ids) == ([7, 8, 1], None)
    assert (whole.finish_reason, whole.stop_reason, whole.completion_tokens) == ("stop", 1, 3)


def test_sglangs_generate_with_ids(tmp_path):
    asked = {"input_ids": [0, 5], "sampling_params": {"temperature": 0}}
    about = {"finish_reason": {"type": "length", "length": 1}, "completion_tokens": 1}
    rows = [{"request": asked, "response": {"text": "a", "output_ids": [7], "meta_info": about}}]
    (exchange,) = read_rows(tmp_path, rows)
    assert isinstance(exchange, Exchange)
    assert (exchange.prompt_token_ids, exchange.finish_reason) == ([0, 5], "length")


@pytest.mark.parametrize(
    ("stop", "reason", "token_ids"),
    [("eos", "stop", [7, 8, 1]), ("limit", "length", [7, 8]), ("limit", "length", None)],
)
def test_llama_cpps_completion(tmp_path, stop, reason, token_ids):
    asked = {"prompt": [0, 5], "n_predict": 9, "temperature": 0.5}
    answered = {"content": "abc", "stop_type": stop, "tokens_predicted": 3, "truncated": False}
    answered |= {"tokens": token_ids or []}
    cut = {**answered, "truncated": True}
    rows = [{"request": asked, "response": answered}, {"request": asked, "response": cut}]
    exchange, reject = read_rows(tmp_path, rows)
    assert isinstance(exchange, Exchange) and isinstance(reject, Reject)
    assert (exchange.prompt_token_ids, exchange.completion_token_ids) == ([0, 5], token_ids)
    assert (exchange.finish_reason, exchange.content, exchange.temperature) == (reason, "abc", 0.5)
    assert reject.reason == "not_finished"


@pytest.mark.parametrize("is_list", [False, True])
def test_a_piece_of_ollama_s_answer_is_cut(tmp_path, is_list):
    asked = {"messages": [{"role": "user", "content": "Hi"}], "options": {"temperature": 0.5}}
    piece = {"message": {"role": "assistant", "content": "a"}, "done": False}
    row = {"request": asked, "response": [piece] if is_list else piece}
    (reject,) = read_rows(tmp_path, [row])
    assert isinstance(reject, Reject)
    assert reject.reason == "stream_cut"


@pytest.mark.parametrize(("role", "is_read"), [("assistant", False), ("user", True)])
def test_an_answer_that_repeats_the_last_message_is_rejected(tmp_path, role, is_read):
    asked = {"messages": [{"role": role, "content": "A"}], "echo": True, "model": "m"}
    answer = {"message": {"role": "assistant", "content": "AB"}, "finish_reason": "stop"}
    (outcome,) = read_rows(tmp_path, [{"request": asked, "response": {"choices": [answer]}}])
    assert isinstance(outcome, Exchange) == is_read


def test_converse_is_read_as_what_bedrock_sends_the_model(tmp_path):
    body = {
        "system": [{"text": "Be terse."}],
        "messages": [{"role": "user", "content": [{"text": "Is 7 prime?"}]}],
        "inferenceConfig": {"maxTokens": 40, "temperature": 0.6, "topP": 0.9},
    }
    thought = {"reasoningContent": {"reasoningText": {"text": "Think.\n"}}}
    message = {"role": "assistant", "content": [{"text": "\n\nYes."}, thought]}
    answered = {"output": {"message": message}, "stopReason": "max_tokens", "usage": {}}
    row = {"modelId": "us.deepseek.r1-v1:0", "input": {"inputBodyJson": body}}
    (exchange,) = read_rows(tmp_path, [{**row, "output": {"outputBodyJson": answered}}])
    assert isinstance(exchange, Exchange) and exchange.messages is not None
    assert [message["content"] for message in exchange.messages] == ["Be terse.", "Is 7 prime?"]
    assert (exchange.reasoning, exchange.content) == ("Think.\n", "\n\nYes.")
    assert (exchange.temperature, exchange.top_p) == (0.6, 0.9)
    assert (exchange.finish_reason, exchange.model) == ("length", row["modelId"])


def test_parts_without_a_type_leave_an_openai_request_as_it_is(tmp_path):
    messages = [{"role": "user", "content": [{"text": "Is 7 prime?"}]}]
    asked = {"model": "r1", "messages": messages, "temperature": 0.4}
    (exchange,) = read_rows(tmp_path, [{"request": asked, "response": ANSWERED}])
    assert isinstance(exchange, Exchange) and exchange.messages is not None
    assert exchange.messages[0]["content"] == "Is 7 prime?"
    assert exchange.temperature == 0.4


@pytest.mark.parametrize("key", ["completion", "response", "output", "generated_text"])
def test_a_rendered_prompt_and_its_completion_are_raw_text(tmp_path, key):
    prompt = "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>\n"
    row = {
        "prompt": prompt,
        key: "Greet.\n</think>\n\nHello.",
        "sampling": {"temperature": 0.5, "max_tokens": 12},
        "usage": {"completion_tokens": 12},
        "session_id": "s",
    }
    whole = {**row, "finish_reason": "stop"}
    cut, finished = read_rows(tmp_path, [row, whole])
    assert isinstance(cut, Exchange) and isinstance(finished, Exchange)
    assert (cut.prompt_text, cut.content, cut.temperature) == (prompt, row[key], 0.5)
    assert (cut.finish_reason, finished.finish_reason) == ("length", "stop")
    assert (cut.session, cut.completion_tokens) == ("s", 12)


def test_a_plain_prompt_is_not_taken_for_what_the_engine_got(tmp_path):
    (reject,) = read_rows(tmp_path, [{"prompt": "Say hi.", "completion": "Hi."}])
    assert isinstance(reject, Reject) and reject.reason == "unknown_format"
    assert '"messages"' in reject.detail


def test_an_image_of_converse_is_not_left_out(tmp_path):
    parts = [{"text": "Hi"}, {"image": {"format": "png"}}]
    body = {"messages": [{"role": "user", "content": parts}], "inferenceConfig": {}}
    message = {"role": "assistant", "content": [{"text": "a"}]}
    answered = {"output": {"message": message}, "stopReason": "end_turn"}
    row = {"input": {"inputBodyJson": body}, "output": {"outputBodyJson": answered}}
    (reject,) = read_rows(tmp_path, [row])
    assert isinstance(reject, Reject) and reject.reason == "not_text"


def wire(first: str, body: str, chunked: bool) -> str:
    headers = f"{first}\r\nHost: x\r\n"
    if chunked:
        data = body.encode()
        pieces = [data[at : at + 40] for at in range(0, len(data), 40)]
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        text = f"{headers}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n"
    else:
        text = f"{headers}\r\n{body}".encode()
    return base64.b64encode(text).decode()


def test_http_messages_in_wire_format(tmp_path):
    rows = [
        {
            "raw_request": wire("POST /v1/chat/completions HTTP/1.1", json.dumps(ASKED), chunked),
            "raw_response": wire("HTTP/1.1 200 OK", answered, chunked),
        }
        for chunked in (False, True)
        for answered in (json.dumps(ANSWERED), STREAM)
    ]
    outcomes = read_rows(tmp_path, rows)
    assert len(outcomes) == 4
    for outcome in outcomes:
        assert isinstance(outcome, Exchange) and outcome.messages == QUESTION
        assert (outcome.reasoning, outcome.content, outcome.finish_reason) == ("r\n", "a", "stop")


def test_text_that_only_begins_like_http_is_text():
    assert plain_text("POST the letter") == "POST the letter"
    assert plain_text("HTTP/1.1 is old\r\n\r\nb") == "HTTP/1.1 is old\r\n\r\nb"


@pytest.mark.parametrize("is_list", [False, True])
def test_tgis_generate(tmp_path, is_list):
    prompt = "<｜User｜>Hi<｜Assistant｜><think>\n"
    asked = {"inputs": prompt, "parameters": {"max_new_tokens": 9, "temperature": 0.5}}
    details = {"finish_reason": "eos_token", "generated_tokens": 4}
    answered = {"generated_text": "Greet.\n</think>\n\nHello.", "details": details}
    rows = [{"request": asked, "response": [answered] if is_list else answered}]
    (exchange,) = read_rows(tmp_path, rows)
    assert isinstance(exchange, Exchange)
    assert (exchange.prompt_text, exchange.temperature) == (prompt, 0.5)
    assert (exchange.content, exchange.finish_reason) == (answered["generated_text"], "stop")
    assert exchange.completion_tokens == 4
