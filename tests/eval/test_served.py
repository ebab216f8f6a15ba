"""In which order blocks are asked, and what is made of them and of counters."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from outrider.eval import fleet, served
from outrider.eval.config import EvalConfig
from outrider.eval.served import CountedPass, counted_acceptance, counted_passes, joined, measure, noise_of, summarise
from outrider.serving.client import Sampling
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator
from outrider.speculators.errors import OutriderError
from tests.eval.sample_results import EVALUATION, sample_blocks


def test_tokens_per_second_are_pooled_and_ratios_paired():
    blocks = sample_blocks(custom_speed=1.4)
    noise = noise_of({"eager": blocks})
    assert {name: each.degrees for name, each in noise.items()} == {
        "custom_over_base": 6,
        "custom_over_none": 6,
        "base_over_none": 6,
    }
    speed = summarise(blocks, EVALUATION, noise)
    assert list(speed) == ["1", "4", "8"]
    own = [b for b in blocks if b["concurrency"] == 4 and b["variant"] == "base"]
    assert speed["4"]["base"]["tokens_per_s"] == pytest.approx(
        sum(b["output_tokens"] for b in own) / sum(b["seconds"] for b in own)
    )
    row = speed["4"]
    ratio = row["custom_over_base"]
    assert ratio["value"] == pytest.approx(row["custom"]["tokens_per_s"] / row["base"]["tokens_per_s"])
    assert ratio["low"] < 1.4 < ratio["high"]
    # Speeds drift by 20 % between repeats; the paired ratio does not care.
    assert ratio["high"] - ratio["low"] < 0.15
    assert ratio["observations"] == 3 * EVALUATION.block_requests(4)


def test_a_block_in_which_the_machine_was_slow_widens_every_interval():
    blocks = sample_blocks()
    slow = [
        b | {"seconds": 2 * b["seconds"]} if (b["repeat"], b["concurrency"], b["variant"]) == (0, 8, "base") else b
        for b in blocks
    ]

    def width(measured, concurrency):
        ratio = summarise(measured, EVALUATION, noise_of({"eager": measured}))[concurrency]["custom_over_base"]
        return ratio["high"] / ratio["low"]

    for concurrency in ("1", "4", "8"):
        assert width(slow, concurrency) > 1.3 * width(blocks, concurrency)
    # Other measurements of the same machine tell more of its noise.
    assert noise_of({"eager": blocks, "compiled": blocks})["custom_over_base"].degrees == 12


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, tuple[str, ...]]]:
    """What is asked once servers are warm, in order: of whom, how many at once, which prompts. Servers are played."""
    heard: list[tuple[str, int, tuple[str, ...]]] = []

    class Played:
        def __init__(self, target, serving, speculator, k, *, log_path, port):
            self.url = "none" if speculator is None else "base"

        def start(self) -> None: ...

        wait = stop = start

        def swap_drafter(self, directory: Path) -> None:
            self.url = directory.name

    def block(url, load, prompts, concurrency, sampling, max_tokens):
        if max_tokens > served.WARM_UP_TOKENS:
            heard.append((url, concurrency, tuple(prompts)))
        drafts = 0 if url == "none" else len(prompts)
        counters = {"drafts": drafts, "accepted_tokens": drafts, "accepted_per_position": [drafts] if drafts else []}
        tokens = [len(prompt) for prompt in prompts]
        lists = ("request_tokens", "request_seconds", "request_deliveries", "ttft_ms", "tpot_ms", "itl_ms")
        return {
            "seconds": sum(tokens),
            "output_tokens": sum(tokens),
            **dict.fromkeys(lists, tokens),
            "counters": counters,
        }

    monkeypatch.setattr(fleet, "Server", Played)
    monkeypatch.setattr(fleet, "SETTLE_S", 0.0)
    monkeypatch.setattr(served, "run_block", block)
    return heard


@contextlib.contextmanager
def played_fleet(tmp_path: Path, custom: Path | Speculator, side_by_side: bool = True) -> Iterator[fleet.Fleet]:
    speculators = {"base": Path("base"), "custom": custom}
    target, serving = TargetConfig(), ServingConfig()
    with fleet.open_fleet(target, serving, speculators, 3, "eager", tmp_path, side_by_side) as opened:
        yield opened


@pytest.mark.parametrize("side_by_side", [True, False])
def test_alone_base_and_custom_take_turns_request_by_request(asked, tmp_path, side_by_side):
    evaluation = EvalConfig(concurrency=[1, 2], requests=3, repeats=2)
    prompts = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff"]
    with played_fleet(tmp_path, Path("custom"), side_by_side) as opened:
        blocks = measure(opened, SimpleNamespace(), prompts, Sampling(), evaluation, say=lambda line: None)
    alone = [(url, *texts) for url, concurrency, texts in asked if concurrency == 1 and url != "none"]
    first = [("base", "a"), ("custom", "a"), ("custom", "bb"), ("base", "bb"), ("base", "ccc"), ("custom", "ccc")]
    begins = sum(evaluation.block_requests(size) for size in (1, 2))  # the prompts that the first repeat has had
    later = [prompts[(begins + place) % 6] for place in range(3)]
    second = [
        (url, later[place // 2]) for place, url in enumerate(("custom", "base", "base", "custom", "custom", "base"))
    ]
    assert alone == first + second
    assert [texts for url, size, texts in asked if (url, size) == ("none", 1)] == [("a", "bb", "ccc"), tuple(later)]
    assert all(len(texts) == 4 for _, size, texts in asked if size == 2)
    # One block each all the same, with all its requests and counts.
    places = [(block["repeat"], block["concurrency"], block["variant"]) for block in blocks]
    assert len(set(places)) == len(places) == 2 * 2 * 3
    for block in blocks:
        assert block["alternated"] == (block["concurrency"] == 1 and block["variant"] != "none")
        assert block["counters"]["drafts"] == (0 if block["variant"] == "none" else len(block["request_tokens"]))
    (base,) = (block for block in blocks if places[blocks.index(block)] == (0, 1, "base"))
    assert base["request_tokens"] == [1, 2, 3] and base["seconds"] == base["output_tokens"] == 6
    assert base["counters"]["accepted_per_position"] == [3]


def test_speculators_in_engines_of_their_own_are_not_alternated(asked, tmp_path):
    evaluation = EvalConfig(concurrency=[1], requests=3, repeats=2)
    with played_fleet(tmp_path, Speculator("ngram")) as opened:
        blocks = measure(opened, SimpleNamespace(), ["a", "bb"], Sampling(), evaluation, say=lambda line: None)
    assert len(asked) == len(blocks) == 2 * 3 and not any(block["alternated"] for block in blocks)


def test_alternated_blocks_have_the_noise_of_their_pairs_and_others_theirs():
    plain = sample_blocks()
    taking_turns = [b | {"alternated": b["concurrency"] == 1 and b["variant"] != "none"} for b in plain]
    noise = noise_of({"eager": taking_turns})
    assert {name: each.degrees for name, each in noise.items()} == {
        "custom_over_base": 4,
        "custom_over_none": 6,
        "base_over_none": 6,
    }
    speed, before = (summarise(blocks, EVALUATION, noise) for blocks in (taking_turns, plain))
    ratio = speed["1"]["custom_over_base"]
    assert ratio["value"] == pytest.approx(before["1"]["custom_over_base"]["value"])
    assert ratio["clusters"] == ratio["observations"] == 3 * EVALUATION.block_requests(1)
    assert speed["4"] == before["4"] and speed["1"]["custom_over_none"] == before["1"]["custom_over_none"]
    # Where nothing else was measured their blocks tell what noise blocks have.
    alone = [block for block in taking_turns if block["concurrency"] == 1]
    assert noise_of({"eager": alone})["custom_over_base"].degrees == 2


def test_blocks_asked_one_after_the_other_are_joined():
    one = {
        "seconds": 1.5,
        "output_tokens": 3,
        "ttft_ms": [1.0],
        "counters": {"drafts": 2, "accepted_per_position": [2, 1]},
    }
    other = {
        "seconds": 0.5,
        "output_tokens": 1,
        "ttft_ms": [],
        "counters": {"drafts": 1, "accepted_per_position": [1, 0]},
    }
    counters = {"drafts": 3, "accepted_per_position": [3, 1]}
    assert joined([one, other]) == {"seconds": 2.0, "output_tokens": 4, "ttft_ms": [1.0], "counters": counters}
    assert joined([one]) == one


def test_counters_are_pooled_before_they_are_divided():
    def counters(drafts, *accepted):
        return {"drafts": drafts, "accepted_tokens": sum(accepted), "accepted_per_position": list(accepted)}

    passes = [
        CountedPass("a", {"base": counters(100, 50, 10), "custom": counters(80, 60, 40)}),
        CountedPass("b", {"base": counters(300, 240, 120), "custom": counters(200, 180, 90)}),
    ]
    counted = counted_acceptance(passes, EvalConfig(bootstrap_samples=100))
    assert counted["base"]["acceptance_length"] == pytest.approx(1 + 420 / 400)
    assert counted["base"]["cumulative"] == pytest.approx([290 / 400, 130 / 400])
    assert counted["base"]["conditional"] == pytest.approx([290 / 400, 130 / 290])
    assert counted["ratio"]["value"] == pytest.approx((1 + 370 / 280) / (1 + 420 / 400))
    assert counted["ratio"]["clusters"] == 2


def test_an_engine_that_drafted_nothing_is_an_error():
    nothing = {"drafts": 0, "accepted_tokens": 0, "accepted_per_position": []}
    with pytest.raises(OutriderError, match="no draft of the base speculator"):
        counted_acceptance([CountedPass("a", {"base": nothing, "custom": nothing})], EvalConfig())


def test_blocks_of_the_same_prompts_are_one_pass():
    passes = counted_passes(sample_blocks())
    assert len(passes) == 9 and all(set(one.counters) == {"base", "custom"} for one in passes)
    assert len(np.unique([one.prompts for one in passes])) == 9
