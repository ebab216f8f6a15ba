"""Logs of vLLM and SGLang: what the golden logs do not hold."""

from outrider.data.formats import format_of
from outrider.data.formats.sources import log_files
from tests.data.logs import read_exchanges


def log(tmp_path, text):
    path = tmp_path / "server.log"
    path.write_bytes(text.encode())
    (file,) = log_files(str(path))
    assert format_of(file) == "vllm_log"
    return list(read_exchanges([file]))


RECEIVED = (
    "INFO 07-01 12:00:00 [logger.py:42] Received request chatcmpl-1: prompt: {prompt}, params: "
    "SamplingParams(n=1, temperature=0.6, top_p=0.95, stop=[], stop_token_ids=[]), "
    "prompt_token_ids: None, lora_request: None.\n"
)
GENERATED = (
    "INFO 07-01 12:00:09 [logger.py:77] Generated response chatcmpl-1: output: {output}, "
    "output_token_ids: None, finish_reason: stop\n"
)
PROMPT = "<｜User｜>one\n\nit's two, params: n=3\n<｜Assistant｜><think>"
ANSWER = "three's\n</think>\n\nfour"


def test_colors_and_process_names(tmp_path):
    text = RECEIVED.format(prompt=repr(PROMPT)) + GENERATED.format(output=repr(ANSWER))
    text = text.replace("INFO", "\x1b[0;36m(APIServer pid=41)\x1b[0;0m \x1b[32mINFO\x1b[0m")
    (row,) = log(tmp_path, text)
    assert (row.prompt_text, row.content) == (PROMPT, ANSWER)


def test_without_debug_the_prompt_is_missing(tmp_path):
    received = (
        RECEIVED.format(prompt="''")
        .replace("prompt: '', ", "")
        .replace("prompt_token_ids: None, ", "")
    )
    (row,) = log(tmp_path, received + GENERATED.format(output="'x'"))
    assert (row.reason, row.detail) == ("prompt_not_logged", "set VLLM_LOGGING_LEVEL=DEBUG")


def test_an_id_that_is_used_again_is_two_requests(tmp_path):
    received, generated = (
        RECEIVED.format(prompt=repr(PROMPT)),
        GENERATED.format(output=repr(ANSWER)),
    )
    rows = log(tmp_path, received + received + generated + received + generated)
    assert [getattr(row, "reason", "exchange") for row in rows] == [
        "unmatched_request",
        "exchange",
        "exchange",
    ]
