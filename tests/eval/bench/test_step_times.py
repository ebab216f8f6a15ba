"""How step times follow from blocks. Real servers are timed in test_evaluate.py."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import Tokenizer

from outrider.common.errors import OutriderError
from outrider.eval.bench.step_times import StepPrompts, step_prompts, time_steps
from outrider.eval.config import STEP_TOKENS
from outrider.eval.results.parts import DRAFTERS
from outrider.serving.client import Sampling, SpeculationCounters
from outrider.serving.load_generator import BlockResult, RequestResult
from outrider.serving.speculator import Speculator

MTP = dict.fromkeys(DRAFTERS, Speculator("mtp"))
COUNTED = SpeculationCounters(
    drafts=0, draft_tokens=0, accepted_tokens=0, accepted_per_position=(), generation_tokens=0
)


class Simulated:
    """Servers and a load generator around an engine whose times are known.

    A step takes 10 ms, 2 ms for each draft, and `prefill_s` for each prompt token that is prefilled
    in it. A prompt has as many tokens as characters; no draft is accepted.
    """

    def __init__(
        self, lengths: tuple[int, ...] = (40,), prefill_s: float = 0.0, apart: bool = False
    ) -> None:
        self.asked: list[tuple[str, int, tuple[str, ...]]] = []
        self.lengths = lengths
        self.prefill_s = prefill_s
        self.apart = apart

    def groups(self, turns):
        return [[turn] for turn in turns] if self.apart else [turns]

    def prepare(self, mode, turns):
        assert turns in self.groups(turns) or self.apart

    def server(self, mode, variant, k):
        self.asked.append((variant, k, ()))
        return SimpleNamespace(url=k)

    def run_block(self, url, prompts, concurrency, sampling, max_tokens):
        variant, number, _ = self.asked[-1]
        self.asked[-1] = (variant, number, tuple(prompts))
        busy = 3 if len(self.asked) % 7 == 0 else 1  # some blocks share the machine
        waiting = [*range(len(prompts))][::-1]
        running: dict[int, list[float]] = {}
        results = {}
        now = 0.0
        while waiting or running:
            step_s = 0.01 + 0.002 * number
            while waiting and len(running) < concurrency:
                index = waiting.pop()
                running[index] = [now]
                step_s += self.prefill_s * len(prompts[index])
            now += busy * step_s
            for index, times in [*running.items()]:
                times.append(now)
                steps = self.lengths[index % len(self.lengths)]
                if len(times) == steps + 2:
                    start, first_ms, *itl_ms = times[0], *(1000 * np.diff(times))
                    results[index] = RequestResult(steps + 1, first_ms, tuple(itl_ms), start)
                    del running[index]
        requests = tuple(results[index] for index in range(len(prompts)))
        tokens = sum(request.output_tokens for request in requests)
        drafts = tokens - len(requests) if number else 0
        counters = replace(COUNTED, drafts=drafts, generation_tokens=tokens)
        return BlockResult(now, requests, counters)


def timed(simulated, numbers=(0, 1, 2), sizes=(1, 4), texts=("aaaa", "bbbbbbbb")):
    return time_steps(
        servers=simulated,
        mode="eager",
        load=simulated,
        numbers={"custom": numbers},
        batch_sizes={"custom": sizes},
        prompts=StepPrompts(texts, [len(text) for text in texts], prompt_share=0.5),
        sampling=Sampling(),
        speculators=MTP,
    )


def test_every_number_answers_the_same_prompts_and_busy_rounds_are_left_out() -> None:
    simulated = Simulated()
    times = timed(simulated)
    for row in times.seconds["custom"].values():
        assert row == pytest.approx({0: 0.01, 1: 0.012, 2: 0.014})
    rounds = [simulated.asked[place : place + 3] for place in range(0, len(simulated.asked), 3)]
    assert all(len({texts for _, _, texts in each}) == 1 for each in rounds)
    assert times.contexts.p50 == 6


@pytest.mark.parametrize("prefill_s", [1e-5, 1e-3, 0.1])
@pytest.mark.parametrize("lengths", [(40,), (60, 12, 33, 5, 80), (24, 90)])
@pytest.mark.parametrize("texts", [("a" * 10,), ("a" * 40, "a" * 500, "a" * 90)])
def test_steps_without_the_prefill_of_other_requests(prefill_s, lengths, texts) -> None:
    """However long prompts and responses are; sending a request twice as long doubles nothing."""
    times = timed(Simulated(lengths, prefill_s), sizes=(1, 3, 8), texts=texts)
    for row in times.seconds["custom"].values():
        assert row == pytest.approx({0: 0.01, 1: 0.012, 2: 0.014})


def test_prefill_is_that_of_all_requests_of_the_batch() -> None:
    times = timed(Simulated(prefill_s=0.1), sizes=(1, 3), texts=("a" * 100,))
    # Half a prompt token per response token, each 0.1 s, and a step of 10 to 14 ms.
    assert times.prefill["custom"] == pytest.approx({1: 0.05, 3: 0.15}, rel=0.01)


def test_numbers_that_start_an_engine_each_are_all_timed() -> None:
    times = timed(Simulated(apart=True))
    for row in times.seconds["custom"].values():
        assert [*row] == [0, 1, 2] and row[2] > row[0]
    assert [*times.prefill["custom"]] == [1, 4]


def test_responses_of_one_token_have_no_steps() -> None:
    with pytest.raises(OutriderError, match=r"counted none with 1 drafts.*eval\.k"):
        timed(Simulated(lengths=(0,)), numbers=[1], sizes=[1])


def logged(lengths: list[tuple[int, int]]) -> Dataset:
    """Rows with these numbers of prompt and response tokens."""
    return Dataset.from_list(
        [
            {
                "prompt_text": f"prompt {number}:",
                "token_ids": [*range(20, 20 + prompt), *(300 + n % 200 for n in range(response))],
                "completion_start": prompt,
            }
            for number, (prompt, response) in enumerate(lengths)
        ]
    )


@pytest.mark.parametrize("seed", range(5))
def test_steps_are_timed_where_the_log_has_its_tokens(nano_r1, seed) -> None:
    random = np.random.default_rng(seed)
    prompts = random.integers(5, 60, 30)
    responses = np.exp(random.normal(5.5, 1, 30)).astype(int) + 1
    found = step_prompts(
        logged([*zip(prompts.tolist(), responses.tolist(), strict=True)]), nano_r1, 100_000
    )
    # Each token is generated after its prompt and the tokens before it.
    contexts = np.concatenate([p + np.arange(r) for p, r in zip(prompts, responses, strict=True)])
    middle = np.mean(found.contexts) + STEP_TOKENS / 2
    assert middle == pytest.approx(contexts.mean(), abs=STEP_TOKENS / 4)
    assert np.percentile(found.contexts, 90) + STEP_TOKENS / 2 == pytest.approx(
        np.percentile(contexts, 90), abs=STEP_TOKENS
    )
    # Blocks take a few at a time, and all of them have the log's contexts.
    quarters = np.searchsorted(np.quantile(found.contexts, [0.25, 0.5, 0.75]), found.contexts)
    for place in range(0, len(quarters) - 8, 8):
        assert set(quarters[place : place + 8]) == {0, 1, 2, 3}
    assert found.prompt_share == pytest.approx(prompts.sum() / responses.sum())


def test_prompts_are_logged_text_that_fits_the_engine(nano_r1) -> None:
    rows = logged([(30, 50), (40, 700)])
    found = step_prompts(rows, nano_r1, 40 + 400 + STEP_TOKENS + 1)
    assert sorted(found.contexts) == [30, *(40 + 100 * part for part in range(5))]
    tokenizer = Tokenizer.from_file(str(nano_r1 / "tokenizer.json"))
    for text, context in zip(found.texts, found.contexts, strict=True):
        row = rows[0] if text.startswith("prompt 0:") else rows[1]
        ids = row["token_ids"][row["completion_start"] : context]
        assert text == row["prompt_text"] + tokenizer.decode(ids, skip_special_tokens=False)
    # A prompt that fits with a shorter response is still sent.
    assert step_prompts(logged([(30, 500)]), nano_r1, 100).contexts == [30]
