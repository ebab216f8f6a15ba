"""The log of finished requests, on vLLM's own output processor."""

import time
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.metrics.stats import IterationStats, RequestSpecDecodeMetrics

from outrider.serving.admin.replica import FinishedRequests, LiveRequest
from outrider.serving.vllm_hooks.live_requests import RequestLog


@pytest.fixture
def processor() -> OutputProcessor:
    return OutputProcessor(None, log_stats=True)


def arrives(processor: OutputProcessor, name: str, arrival: float | None = None) -> None:
    request = EngineCoreRequest(
        request_id=f"{name}-0a1b2c3d",
        prompt_token_ids=list(range(5)),
        mm_features=None,
        sampling_params=SamplingParams(detokenize=False),
        pooling_params=None,
        arrival_time=arrival or time.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
        external_req_id=name,
    )
    processor.add_request(request, None)


def produces(processor: OutputProcessor, name: str, tokens: int, at: float, **end: Any) -> None:
    """A step of the engine, at a time of its monotonic clock."""
    output = EngineCoreOutput(f"{name}-0a1b2c3d", list(range(tokens)), **end)
    processor.process_outputs([output], at, IterationStats())


def ended(histogram: list[int] | None = None, reason: str = "STOP") -> dict[str, Any]:
    counts = None
    if histogram is not None:
        counts = RequestSpecDecodeMetrics(len(histogram) - 1, histogram)
    return {"finish_reason": FinishReason[reason], "spec_decode_metrics": counts}


def test_every_end_of_a_request_is_one_entry(processor: OutputProcessor) -> None:
    heard = list[LiveRequest]()
    log = RequestLog(processor, heard.append)
    for name in ("whole", "failed", "hung up"):
        arrives(processor, name)
        produces(processor, name, 1, at=100.0)
    produces(processor, "whole", 4, at=103.0)
    assert log.after(0) == FinishedRequests([], 0)
    produces(processor, "whole", 3, at=105.5, **ended([1, 0, 2, 1]))
    produces(processor, "failed", 0, at=106.0, **ended(reason="ERROR"))
    processor.abort_requests(["hung up", "not there"], internal=False)
    found = log.after(0).requests
    assert found == heard and log.after(0).next == 3 and processor.request_states == {}
    assert [
        (each.index, each.request_id, each.failed, each.aborted, each.completion_tokens,
         each.drafts, each.accepted)
        for each in found
    ] == [
        (0, "whole", False, False, 8, 4, 0 * 1 + 2 * 2 + 3 * 1),
        (1, "failed", True, False, 1, 0, 0),
        (2, "hung up", False, True, 1, 0, 0),
    ]  # fmt: skip
    assert found[0].decode_s == 5.5 and 0 <= found[0].ttft_s <= found[0].e2e_s
    assert log.after(2) == FinishedRequests(found[2:], 3)


def test_a_request_has_a_version_only_if_one_speculator_drafted_all_of_it(
    processor: OutputProcessor,
) -> None:
    log = RequestLog(processor, lambda _: None)
    now = time.monotonic()
    assert log.version(now - 9, now) == (None, False)
    log.note_swap(now - 6, "a")
    (swap,) = log._swaps
    for arrived, finished, found in (
        (now - 9, now - 7, (None, False)),
        (now - 9, now - 5, (None, True)),
        (now - 1, now + 5, (None, True)),  # it arrived during the swap
        (swap.ended + 1, swap.ended + 2, ("a", False)),
    ):
        assert log.version(arrived, finished) == found
    time.sleep(0.01)
    arrives(processor, "r", arrival=time.time())
    log.note_swap(time.monotonic(), "b")
    produces(processor, "r", 1, at=1.0, **ended([0, 1]))
    time.sleep(0.01)
    arrives(processor, "s")
    produces(processor, "s", 1, at=1.0, **ended([0, 1]))
    mixed, whole = log.after(0).requests
    assert (mixed.version, mixed.mixed) == (None, True)
    assert (whole.version, whole.mixed) == ("b", False)
