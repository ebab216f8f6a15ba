"""vLLM's request log: what the golden logs do not hold."""

from outrider.data.formats import format_of
from outrider.data.formats.sources import log_files
from tests.data.logs import read_exchanges


def log(tmp_path, text):
    path = tmp_path / "server.log"
    path.write_bytes(text.encode())
    (file,) = log_files(str(path))
    assert format_of(file) == "vllm_log"
    return list(read_exchanges([file]))


DETAILS = (
    "DEBUG 07-01 12:00:00 [logger.py:42] Request chatcmpl-1 details: prompt: "
    f"{'<｜User｜> it is one, prompt_token_ids: [9], prompt_embeds shape: None.'!r}, "
    "prompt_token_ids: [0, 1], prompt_embeds shape: None.\n"
)
RECEIVED = (
    "INFO 07-01 12:00:00 [logger.py:42] Received request chatcmpl-1: params: SamplingParams(n=1, "
    "temperature=0.6, top_p=0.95, stop=[], stop_token_ids=[]), lora_request: None.\n"
)
GENERATED = (
    "DEBUG 07-01 12:00:09 [logger.py:77] Generated response chatcmpl-1 details: "
    "output_token_ids: [3, 4, 5]\n"
    "INFO 07-01 12:00:09 [logger.py:77] Generated response chatcmpl-1: output: 'x, "
    "output_token_ids: [7]', finish_reason: stop\n"
)
WHOLE = DETAILS + RECEIVED + GENERATED


def test_colors_process_names_and_texts_that_look_like_ids(tmp_path):
    text = WHOLE.replace("INFO", "\x1b[0;36m(APIServer pid=41)\x1b[0;0m \x1b[32mINFO\x1b[0m")
    (row,) = log(tmp_path, text)
    assert (row.prompt_token_ids, row.completion_token_ids) == ([0, 1], [3, 4, 5])


def test_without_token_ids_the_fix_is_named(tmp_path):
    info = RECEIVED + GENERATED.splitlines(keepends=True)[1]
    (row,) = log(tmp_path, info)
    assert row.reason == "no_token_ids" and "VLLM_LOGGING_LEVEL=DEBUG" in row.detail
    (row,) = log(tmp_path, DETAILS + info)
    assert row.reason == "no_token_ids"


def test_an_id_that_is_used_again_is_two_requests(tmp_path):
    rows = log(tmp_path, DETAILS + WHOLE + WHOLE)
    reasons = [getattr(row, "reason", "exchange") for row in rows]
    assert reasons == ["unmatched_request", "exchange", "exchange"]
