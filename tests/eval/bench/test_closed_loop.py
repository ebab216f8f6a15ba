"""The order of timed blocks, and when they end. Servers and load are real in test_evaluate.py."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.common.fingerprint import CachedResult
from outrider.eval.bench import servers as module
from outrider.eval.bench.closed_loop import measure_closed_loop
from outrider.eval.bench.counted import counted_passes
from outrider.eval.bench.metrics import SpeedRatios
from outrider.eval.bench.prompts import Prompt
from outrider.eval.bench.servers import Servers
from outrider.eval.config import EvalConfig
from outrider.eval.results.parts import CURRENT
from outrider.eval.speed_checks import speed_demands
from outrider.serving.client import Sampling, SpeculationCounters
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.load_generator import BlockResult, LoadGenerator, RequestResult
from outrider.serving.speculator import Speculator


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, tuple[str, ...]]]:
    """Requests after the warm-up, in order: server or weights, concurrency, prompts."""
    heard: list[tuple[str, int, tuple[str, ...]]] = []

    class Played:
        swap_seconds: float | None = None

        def __init__(self, target, engine, drafting, **_):
            self.url = (drafting.speculator.directory or Path("n")).name if drafting else "none"

        def launch(self) -> None: ...

        wait_until_healthy = stop = launch

        def swap(self, directory: Path) -> None:
            self.url = directory.name

        def reset_prefix_cache(self) -> None: ...

    def block(self, url, prompts, concurrency, sampling, max_tokens):
        heard.append((url, concurrency, tuple(prompts)))
        drafts = 0 if url == "none" else len(prompts)
        speed = 2.0 if url == "faster" else 1.0
        wobble = 1 + 0.1 * (-1) ** len(heard)  # no two blocks take exactly the same time
        requests = [
            RequestResult(len(prompt), 0.0, (1000 * wobble / speed,) * len(prompt))
            for prompt in prompts
        ]
        reached = (drafts,) if drafts else ()
        counters = SpeculationCounters(
            drafts=drafts,
            draft_tokens=drafts,
            accepted_tokens=drafts,
            accepted_per_position=reached,
            generation_tokens=3 * len(prompts),
        )
        seconds = sum(request.latency_s for request in requests)
        return BlockResult(seconds, tuple(requests), counters)

    monkeypatch.setattr(module, "Server", Played)
    monkeypatch.setattr(LoadGenerator, "run_block", block)
    return heard


def mtp(name: str) -> Speculator:
    """A speculator of an MTP layer in the directory `name`, which is never read."""
    return Speculator("mtp", Path(name))


def timed(count: int) -> list[Prompt]:
    """Prompts of as many sessions."""
    return [
        Prompt(sequence_id=f"q{number}", session=f"s{number}", user="", token_ids=[], text="")
        for number in range(count)
    ]


PLAN = {"none": None, "base": 3, "custom": 3}
LOOKUP = {"lookup": Speculator("ngram")}


def measured(
    tmp_path: Path,
    custom: Speculator,
    prompts: list[str],
    evaluation: EvalConfig,
    side_by_side: bool = True,
    plan: Any = PLAN,
    say: Any = lambda line: None,
    finished: CachedResult | None = None,
) -> list[dict[str, Any]]:
    """The blocks that `measure_closed_loop` records with these servers."""
    speculators = {"base": mtp("base"), "custom": custom} | (LOOKUP if "lookup" in plan else {})
    target = TargetConfig()
    serving = ServingConfig()
    asked = [
        replace(own, text=text) for own, text in zip(timed(len(prompts)), prompts, strict=True)
    ]
    speeds = SpeedRatios(evaluation, asked, main=1)
    load = LoadGenerator(target, tmp_path / "log")
    with Servers(
        target=target,
        serving=serving,
        speculators=speculators,
        numbers=dict.fromkeys(speculators, (1, 2, 3)),
        log_dir=tmp_path,
        side_by_side=side_by_side,
    ) as servers:
        return measure_closed_loop(
            servers,
            mode="eager",
            plan=plan,
            load=load,
            sampling=Sampling(),
            speeds=speeds,
            say=say,
            finished=finished,
        )


@pytest.mark.parametrize("side_by_side", [True, False])
def test_lookup_is_measured_at_the_main_concurrency_in_an_engine_of_its_own(
    sent, tmp_path, side_by_side
):
    evaluation = EvalConfig(concurrency=[1, 2], requests=2, repeats=3)
    plan = PLAN | {"lookup": 2}
    prompts = ["a", "bb", "ccc", "dddd"]
    found = measured(tmp_path, mtp("custom"), prompts, evaluation, side_by_side, plan)
    own = [block for block in found if block["variant"] == "lookup"]
    # All three repeats start the servers: with fewer starts, no comparison of two is decided.
    assert [(block["repeat"], block["concurrency"]) for block in own] == [
        (repeat, 1) for repeat in range(3)
    ]
    assert [block["start"] for block in own] == [0, 1, 2]
    assert {block["alternated"] for block in own} == {side_by_side}
    rows = SpeedRatios(evaluation, timed(4), main=1).summarise(found)
    assert rows["2"].lookup is None and rows["1"].lookup.block.requests == 2 * len(own)
    assert rows["1"].lookup.custom_over.clusters == rows["1"].lookup_starts == 3


@pytest.mark.parametrize("side_by_side", [True, False])
def test_alone_the_variants_of_servers_that_are_up_alternate_by_request(
    sent, tmp_path, side_by_side
):
    evaluation = EvalConfig(concurrency=[1, 2], requests=3, repeats=2)
    prompts = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff"]
    found = measured(tmp_path, mtp("custom"), prompts, evaluation, side_by_side=side_by_side)
    together = ["none", "base", "custom"] if side_by_side else ["base", "custom"]
    alone = [
        (url, *texts) for url, concurrency, texts in sent if concurrency == 1 and url in together
    ]
    # The first repeat used as many prompts as its blocks of both concurrencies have requests.
    begins = sum(evaluation.block_requests(size) for size in (1, 2))
    later = [prompts[(begins + place) % 6] for place in range(3)]
    back = together[::-1]
    first = [("a", together), ("bb", back), ("ccc", together)]
    second = [(later[0], back), (later[1], together), (later[2], back)]
    expected = []
    for prompt, urls in first + second:
        expected += [(url, prompt) for url in urls]
    assert alone == expected
    if not side_by_side:
        assert [texts for url, size, texts in sent if (url, size) == ("none", 1)] == [
            ("a", "bb", "ccc"),
            tuple(later),
        ]
    assert all(len(texts) == 4 for _, size, texts in sent if size == 2)
    # Each variant has one block per repeat and concurrency, with all its requests and counts.
    places = [(block["repeat"], block["concurrency"], block["variant"]) for block in found]
    assert len(set(places)) == len(places) == 2 * 2 * 3
    for block in found:
        assert block["alternated"] == (block["concurrency"] == 1 and block["variant"] in together)
        assert block["counters"]["drafts"] == (
            0 if block["variant"] == "none" else len(block["request_tokens"])
        )
    (base,) = (block for block, place in zip(found, places, strict=True) if place == (0, 1, "base"))
    assert base["request_tokens"] == [1, 2, 3] and base["output_tokens"] == 6
    assert base["seconds"] == pytest.approx(sum(base["request_seconds"]))
    assert base["counters"]["accepted_per_position"] == (3,)
    assert [prompts[index] for index in base["prompts"]] == ["a", "bb", "ccc"]
    # Each session has its own responses, however the variants took turns.
    passes = counted_passes(found, timed(6))
    assert [len(one.prompts) for one in passes] == [3, 4, 3, 4]
    assert {each.session for one in passes for each in one.prompts} == {f"s{n}" for n in range(6)}


def test_where_weights_load_slowly_the_variants_alternate_by_several_requests(
    sent, tmp_path, monkeypatch
):
    monkeypatch.setattr(module.Server, "swap_seconds", 0.3)  # a request takes 0.9 or 1.1 s
    evaluation = EvalConfig(concurrency=[1], requests=7, repeats=2)
    found = measured(tmp_path, mtp("custom"), ["p"] * 7, evaluation)
    # Of 10 s at most one may go to loading: 3 requests of about 1 s between two loads of 0.3 s.
    assert [len(texts) for url, _, texts in sent if url == "custom"] == [1, 3, 3] * 2
    assert all(len(block["request_tokens"]) == 7 and block["alternated"] for block in found)


def test_base_at_current_k_is_measured_next_to_base(sent, tmp_path):
    evaluation = EvalConfig(concurrency=[1, 2], requests=2, repeats=3)
    plan = {"none": None, "base": 2, "custom": 3, CURRENT: 1}
    found = measured(tmp_path, mtp("custom"), ["a", "bb"], evaluation, plan=plan)
    repeats = {
        variant: [block["repeat"] for block in found if block["variant"] == variant]
        for variant in ("base", CURRENT, "custom")
    }
    assert all(own == [0, 0, 1, 1, 2, 2] for own in repeats.values())
    # Alone they alternate by request, base's next to each other: its weights stay.
    first = [url for url, concurrency, _ in sent if concurrency == 1][:8]
    order = ["none", "base", "base", "custom"]
    assert first == order + order[::-1]
    speed = SpeedRatios(evaluation, timed(2), main=1).summarise(found)["1"]
    assert speed.current.custom_over.clusters == speed.custom_over_base.clusters == 6
    assert speed.starts is None


PROMPTS = ["a" * length for length in (30, 41, 52, 33, 44)]


@pytest.mark.parametrize(
    ("custom", "threshold", "repeats", "end"),
    [
        ("faster", 1.0, 3, "decided after 3 of at most 6 repeats: custom / base at 1: 2."),
        ("equal", 1.0, 6, "undecided after all 6 repeats: custom / base at 1"),
        ("faster", 2.0, 6, "undecided after all 6 repeats: custom / base at 1: 2."),
    ],
)
def test_repeats_end_at_the_first_look_that_decides(
    sent, tmp_path, custom, threshold, repeats, end
):
    evaluation = EvalConfig(
        measure="until_decided",
        concurrency=[1],
        requests=5,
        repeats=6,
        gate={"min_speed_ratio": threshold},
    )
    lines: list[str] = []
    found = measured(tmp_path, mtp(custom), PROMPTS, evaluation, say=lines.append)
    assert 1 + max(block["repeat"] for block in found) == repeats
    assert lines[-1].startswith(end)


@pytest.mark.parametrize(("starts", "expected"), [(1, 1), (2, 2), (6, 3)])
def test_engines_start_again_while_a_comparison_of_two_is_open(sent, tmp_path, starts, expected):
    """Custom is much faster than none, so three starts decide."""
    evaluation = EvalConfig(concurrency=[1], requests=5, repeats=5, starts=starts)
    blocks = measured(tmp_path, mtp("faster"), PROMPTS, evaluation)
    assert 1 + max(block["start"] for block in blocks) == expected
    row = SpeedRatios(evaluation, timed(5), main=1).summarise(blocks)["1"]
    assert (row.starts, row.none_starts) == (None, expected)
    none = next(one for one in speed_demands({"1": row}, 1, evaluation.gate) if one.kind == "none")
    assert none.outcome == ("passed" if starts == 6 else "undecided")
    if starts < 3:
        assert "raise eval.starts and eval.repeats to 3" in none.what_decides(5)


def test_two_engines_start_again_in_every_repeat_and_alternate_by_request(sent, tmp_path):
    evaluation = EvalConfig(concurrency=[1], requests=3, repeats=3)
    found = measured(tmp_path, Speculator("ngram"), ["a", "bb"], evaluation)
    assert len(found) == 3 * 3 and all(block["alternated"] for block in found)
    order = [url for url, _, _ in sent]
    assert order[:6] == order[:3] + order[2::-1]
    assert len(set(order[:3])) == 3 and len(order) == 3 * 3 * 3
    assert [block["start"] for block in found] == [block["repeat"] for block in found]
    engines = {block["variant"]: block["engine"] for block in found}
    assert len(set(engines.values())) == 3
    row = SpeedRatios(evaluation, timed(2), main=1).summarise(found)["1"]
    assert row.starts == row.custom_over_base.clusters == 3


@pytest.mark.parametrize("measure", ["full", "until_decided"])
def test_an_interrupted_measurement_continues_after_its_last_whole_repeat(
    sent: list[Any], tmp_path: Path, measure: str
) -> None:
    """Interrupted in every repeat; the prompts and the end are those of one measurement."""
    evaluation = EvalConfig(concurrency=[1], requests=4, repeats=6, starts=3, measure=measure)
    finished = CachedResult(tmp_path / "repeats.json", "the same settings")

    def interrupt(line: str) -> None:
        """Stops in the repeat after the one that began the measurement."""
        repeat = int(line.partition("/")[0].split()[-1]) if line.startswith("repeat") else 0
        if finished.done() and repeat == 2 + len(interruptions):
            interruptions.append(repeat)
            raise KeyboardInterrupt

    interruptions: list[int] = []
    whole = measured(tmp_path, mtp("faster"), PROMPTS, evaluation)
    for _ in range(9):
        with contextlib.suppress(KeyboardInterrupt):
            blocks = measured(
                tmp_path, mtp("faster"), PROMPTS, evaluation, say=interrupt, finished=finished
            )
            break
    places = ("repeat", "concurrency", "variant", "prompts")
    for block, expected in zip(blocks, whole, strict=True):
        assert [block[name] for name in places] == [expected[name] for name in places]
    # Engines of every window are started again, and a whole measurement is not repeated.
    repeats = 1 + max(block["repeat"] for block in whole)
    assert repeats == (6 if measure == "full" else 3)
    assert len(interruptions) == repeats - 1
    assert sorted({block["start"] for block in blocks}) == [*range(repeats)]
    before = len(sent)
    again = measured(tmp_path, mtp("faster"), PROMPTS, evaluation, finished=finished)
    assert json.dumps(again) == json.dumps(blocks) and len(sent) == before
