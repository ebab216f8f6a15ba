"""Production against the report: as reported, or the planted difference and its number."""

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.common.errors import OutriderError
from outrider.eval.confirm.confirm import START_NOISE, Confirmation, check_model, confirm
from outrider.eval.confirm.expectation import ExpectedFigures, expected_figures
from outrider.eval.confirm.figures import LENGTH, LENGTH_CHANGE, TPOT, TPOT_CHANGE, TTFT, Cause
from outrider.eval.confirm.scrape import MetricsWindow, read_scrape
from outrider.eval.results.parts import Drafters
from outrider.eval.results.report import Report
from outrider.eval.results.sections import Quantiles
from tests.eval.confirm.served import (
    RECORDED,
    recorded,
    rewritten,
    sample_report,
    scrape_of,
    served_text,
)


@functools.cache
def custom() -> ExpectedFigures:
    return expected_figures(sample_report(), "custom")


def confirmed(folder: Path, before: str | None = None, **served: Any) -> Confirmation:
    """A simulated server, by default as fast as the report has it for its load and K."""
    served = {"tpot_ms": custom().tpot_ms(served.get("load", 1.0), served.get("k", 3))} | served
    seen = MetricsWindow([scrape_of(served_text(**served), folder / "seen.txt")])
    old = None if before is None else MetricsWindow([scrape_of(before, folder / "before.txt")])
    return confirm(sample_report(), seen, old)


def causes(result: Confirmation, figure: str) -> dict[str, Cause]:
    return {cause.name: cause for cause in result.figures[figure].because}


def test_as_reported(tmp_path: Path) -> None:
    result = confirmed(tmp_path)
    assert result.reading == "as reported" and not result.worse
    assert {figure.reading for figure in result.figures.values()} == {"as reported"}
    assert result.figures[LENGTH].reported == sample_report().replay.by_k["custom"][2]
    assert "because" not in result.answer


def test_another_k(tmp_path: Path) -> None:
    result = confirmed(tmp_path, k=2)
    length = result.figures[LENGTH]
    assert length.reading == "lower" and result.worse
    assert [*causes(result, LENGTH)] == ["K"]
    # 1 + 0.8 + 0.64 of 1 + 0.8 + 0.64 + 0.512 tokens.
    assert length.because[0].effect == pytest.approx(2.44 / 2.952, rel=0.01)
    assert "K is 2 instead of 3 (x 0.8" in result.answer
    assert result.figures[TPOT].seen == pytest.approx(custom().tpot_ms(1.0, 2))


@pytest.mark.parametrize(("load", "reading"), [(1.05, "as reported"), (5.0, "higher")])
def test_another_load(load: float, reading: str, tmp_path: Path) -> None:
    result = confirmed(tmp_path, load=load)
    assert result.figures[LENGTH].reading == "as reported"
    assert result.figures[TPOT].reading == reading
    if reading == "higher":
        assert [*causes(result, TPOT)] == ["load"]
        rows = {size: block.tpot_ms for size, block in custom().blocks.items()}
        effect = causes(result, TPOT)["load"].effect
        # Between the measured concurrencies 4 and 8.
        assert effect is not None and rows[4].p50 < effect * rows[1].p50 < rows[8].p50
        assert "5 requests share a step instead of 1" in result.answer


def test_a_load_beyond_the_measured_ones_is_marked(tmp_path: Path) -> None:
    result = confirmed(tmp_path, load=40.0)
    assert "40 requests share a step instead of 1 (measured up to 8)" in result.answer


def test_harder_traffic(tmp_path: Path) -> None:
    result = confirmed(tmp_path, accepted=0.7, prompt_tokens=900)
    length = result.figures[LENGTH]
    assert length.reading == "lower"
    assert [*causes(result, LENGTH)] == ["traffic"]
    assert length.because[0].effect == pytest.approx(2.533 / 2.952, rel=0.02)
    assert "prompts of 900 tokens instead of 200" in result.answer
    # The same steps with fewer tokens each.
    slower = confirmed(tmp_path, accepted=0.6, tpot_ms=custom().tpot_ms(1.0) * 2.952 / 2.176)
    assert [*causes(slower, TPOT)] == ["acceptance"]


def test_several_causes_and_their_numbers(tmp_path: Path) -> None:
    result = confirmed(
        tmp_path, k=2, load=5.0, accepted=0.7, tpot_ms=1.3 * custom().tpot_ms(5.0, 2)
    )
    assert {*causes(result, LENGTH)} == {"K", "traffic"}
    assert {"load", "acceptance"} <= {*causes(result, TPOT)}
    length = result.figures[LENGTH]
    effects = [cause.effect or 1.0 for cause in length.because]
    # The parts multiply to the whole, and the largest one comes first.
    assert math.prod(effects) == pytest.approx(length.ratio.value)
    assert effects == sorted(effects)


def test_a_slow_machine_is_not_in_the_counters(tmp_path: Path) -> None:
    result = confirmed(tmp_path, tpot_ms=1.6 * custom().tpot_ms(1.0))
    assert [*causes(result, TPOT)] == ["not in the counters"]
    assert result.worse and result.figures[LENGTH].reading == "as reported"
    fast = confirmed(tmp_path, tpot_ms=0.6 * custom().tpot_ms(1.0))
    assert fast.figures[TPOT].reading == "lower" and not fast.worse


def test_prefix_hits_are_named_where_the_first_token_is_early(tmp_path: Path) -> None:
    # The report's median is 28 ms.
    result = confirmed(tmp_path, hits=0.6, ttft_ms=8)
    assert result.figures[TTFT].reading == "lower"
    assert "prefix hits are 60%" in causes(result, TTFT)["prefix hits"].words
    late = confirmed(tmp_path, hits=0.6, ttft_ms=300, prompt_tokens=2000)
    assert late.figures[TTFT].reading == "higher"
    assert [*causes(late, TTFT)] == ["traffic"]


def test_more_drafts_than_were_replayed(tmp_path: Path) -> None:
    """Acceptance is compared at the largest K of the report, by position."""
    replay = sample_report().replay
    assert replay is not None
    shorter = {name: lengths[:2] for name, lengths in replay.by_k.items()}
    served = {
        mode: row.model_copy(update={"k": Drafters[int](base=2, custom=2)})
        for mode, row in sample_report().served.items()
    }
    report = sample_report().model_copy(
        update={"replay": replay.model_copy(update={"by_k": shorter}), "served": served}
    )
    seen = MetricsWindow([scrape_of(served_text(), tmp_path / "seen.txt")])
    result = confirm(report, seen)
    assert result.figures[LENGTH].reading == "higher"
    assert [*causes(result, LENGTH)] == ["K"]
    assert "K is 3 instead of 2" in result.answer


def test_before_and_after_a_restart(tmp_path: Path) -> None:
    """Base at K = 2 accepts 0.6 of its drafts in the sample report."""
    base = expected_figures(sample_report(), "base")
    before = served_text(k=2, accepted=0.6, load=1.0, tpot_ms=base.tpot_ms(1.0), seed=1)
    result = confirmed(tmp_path, before)
    assert result.reading == "as reported"
    length = result.figures[LENGTH_CHANGE]
    assert length.reported == pytest.approx(2.952 / 1.96, rel=0.01)
    assert result.figures[TPOT_CHANGE].reported == pytest.approx(
        custom().tpot_ms(1.0) / base.tpot_ms(1.0)
    )
    assert result.conditions["before"].k == 2
    # Harder traffic since the restart.
    harder = confirmed(tmp_path, before, accepted=0.7)
    assert harder.figures[LENGTH_CHANGE].reading == "lower" and harder.worse


def test_before_without_speculation(tmp_path: Path) -> None:
    none = expected_figures(sample_report(), "none")
    text = served_text(k=2, accepted=0.6, load=4.0, tpot_ms=none.tpot_ms(4.0))
    lines = [line for line in text.splitlines() if "spec_decode" not in line]
    result = confirmed(tmp_path, "\n".join(lines), load=4.0)
    assert LENGTH_CHANGE not in result.figures
    change = result.figures[TPOT_CHANGE]
    assert change.reading == "as reported"
    assert change.reported == pytest.approx(custom().tpot_ms(4.0) / none.tpot_ms(4.0), rel=1e-3)


def recorded_report() -> Report:
    """The sample's report with the acceptance that a real server had at K = 3, within 6 %."""
    window = MetricsWindow([read_scrape(str(RECORDED / "k3_first.txt"))])
    length = window.acceptance_length
    replay = sample_report().replay
    assert replay is not None
    custom_length = replay.custom.model_copy(
        update={"value": length, "low": length * 0.94, "high": length / 0.94, "observations": 24}
    )
    by_k = replay.by_k | {"custom": [window.length_at(k) for k in (1, 2, 3)]}
    replay = replay.model_copy(update={"custom": custom_length, "by_k": by_k})
    return sample_report().model_copy(update={"replay": replay, "traffic": None})


def test_a_real_server_with_another_k() -> None:
    seen = MetricsWindow([read_scrape(str(RECORDED / "k2_first.txt"))])
    result = confirm(recorded_report(), seen)
    length = result.figures[LENGTH]
    assert length.ratio.value < 0.97 and seen.k == 2
    lengths = recorded_report().replay.by_k["custom"]
    # What K does not explain is within the interval, so it is not called another traffic.
    assert seen.acceptance_length == pytest.approx(lengths[1], rel=0.05)
    assert [*causes(result, LENGTH)] == ["K"]
    # 24 requests do not show what K takes away, and the answer names it all the same.
    assert length.reading == "as reported"
    assert "although K is 2 instead of 3 (x 0.9" in result.answer
    twice = MetricsWindow([read_scrape(str(RECORDED / "k2_second.txt"))])
    more = confirm(recorded_report(), twice)
    assert more.figures[LENGTH].reading == "lower"
    assert [*causes(more, LENGTH)] == ["K"]


def test_a_real_server_with_another_load() -> None:
    now, then = (read_scrape(str(RECORDED / f"k3_{name}.txt")) for name in ("second", "first"))
    result = confirm(recorded_report(), MetricsWindow([now.since(then)]))
    # Eight requests at once, until the last ones ended; the sample's tokens take 2.4 ms.
    assert "5.94 requests share a step instead of 1" in causes(result, TPOT)["load"].words
    assert result.figures[TPOT].reading == "higher"


def test_too_few_requests_are_undecided_and_how_many_would_do(tmp_path: Path) -> None:
    report = sample_report()
    replay = report.replay
    assert replay is not None
    vague = replay.custom.model_copy(
        update={"low": replay.custom.value * 0.93, "high": replay.custom.value / 0.93}
    )
    report = report.model_copy(update={"replay": replay.model_copy(update={"custom": vague})})
    few = MetricsWindow([scrape_of(served_text(requests=30), tmp_path / "few.txt")])
    length = confirm(report, few).figures[LENGTH]
    assert length.reading == "undecided" and length.requests_needed is not None
    assert (
        f"about {length.requests_needed} finished requests would decide"
        in confirm(report, few).answer
    )
    enough = served_text(requests=length.requests_needed + 10)
    decided = confirm(report, MetricsWindow([scrape_of(enough, tmp_path / "more.txt")]))
    assert decided.figures[LENGTH].reading == "as reported"


def test_a_report_without_an_interval(tmp_path: Path) -> None:
    """Kinds that are not replayed have one of the ratio only."""
    report = sample_report().model_copy(update={"replay": None})
    seen = MetricsWindow([scrape_of(served_text(), tmp_path / "seen.txt")])
    length = confirm(report, seen).figures[LENGTH]
    assert length.reported == pytest.approx(report.counted.custom.acceptance_length)
    assert length.reading == "undecided" and length.requests_needed is None
    assert "evaluate with more held-out sessions" in confirm(report, seen).answer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (served_text(requests=19), "--metrics .*: 19 finished requests .* at least 20 are needed"),
        (recorded("k3_first").replace("spec_decode_num_draft", "x"), "runs without speculation"),
        (
            rewritten(
                recorded("k3_second"),
                {
                    f'vllm:spec_decode_num_{name}_total{{engine="0",model_name="short_r1"}}': 0
                    for name in ("drafts", "draft_tokens", "accepted_tokens")
                },
            ),
            "no drafts were counted.*serve.sh",
        ),
    ],
    ids=["too few requests", "no counters of speculation", "no drafts"],
)
def test_counts_that_show_nothing(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(OutriderError, match=message):
        confirm(sample_report(), MetricsWindow([scrape_of(text, tmp_path / "seen.txt")]))


def test_an_empty_window(tmp_path: Path) -> None:
    scrape = scrape_of(served_text(), tmp_path / "seen.txt")
    with pytest.raises(OutriderError, match=r"0 finished requests.*leave --since out"):
        confirm(sample_report(), MetricsWindow([scrape.since(scrape)]))


def test_another_model(tmp_path: Path) -> None:
    scrape = scrape_of(served_text(), tmp_path / "seen.txt")
    check_model(sample_report(), [scrape])
    other = sample_report().model_copy(update={"target": "acme/Large"})
    with pytest.raises(OutriderError, match=r"is short_r1, the report's Large; .*--model short_r1"):
        check_model(other, [scrape])


def test_how_often_equal_production_is_called_different(tmp_path: Path) -> None:
    """At most 5 % of figures, with the noise that the intervals assume."""
    random = np.random.default_rng(3)
    trials = 120
    wrong = {LENGTH: 0, TPOT: 0}
    for trial in range(trials):
        # The report's own acceptance is off by its error, and both engine starts are.
        slow = math.exp(random.normal(0, START_NOISE * math.sqrt(2)))
        error = random.normal(0, custom().length_error)
        accepted = _accepted(2.952 * math.exp(error))
        result = confirmed(
            tmp_path,
            requests=60,
            accepted=accepted,
            tpot_ms=slow * custom().tpot_ms(1.0),
            seed=100 + trial,
        )
        for name in wrong:
            wrong[name] += result.figures[name].reading in ("lower", "higher")
    assert max(wrong.values()) <= 0.05 * trials


def _accepted(length: float) -> float:
    """The probability of a draft with which three drafts have this acceptance length."""
    grid = np.linspace(0.5, 0.95, 1000)
    return float(np.interp(length, 1 + grid + grid**2 + grid**3, grid))


def test_a_mean_of_quantiles() -> None:
    """That of a log-normal distribution is found from its p50 and p90."""
    random = np.random.default_rng(0)
    values = random.lognormal(math.log(20), 0.3, 100_000)
    row = next(iter(sample_report().served.values())).speed["1"]
    block = row.custom.model_copy(update={"tpot_ms": Quantiles.of(values)})
    one = ExpectedFigures(
        k=3,
        k_by_load=(),
        lengths=[1.8],
        length_error=0.0,
        responses=1,
        main=1,
        blocks={1: block},
        step_ms={},
    )
    assert one.tpot_ms(1.0) == pytest.approx(values.mean(), rel=0.01)


def test_a_schedule_has_its_k_at_each_load() -> None:
    schedule = Drafters[list[tuple[int, int, int]]](base=[(1, 8, 2)], custom=[(1, 2, 3), (3, 8, 1)])
    choice = sample_report().choice.model_copy(update={"k_per_batch_size": schedule})
    report = sample_report().model_copy(update={"choice": choice, "by_batch_size": True})
    scheduled = expected_figures(report, "custom")
    assert [scheduled.k_at(load) for load in (0.4, 2.4, 2.6, 30)] == [3, 3, 1, 3]
    assert scheduled.k_effect(1.0, 3) == 1
    assert scheduled.k_effect(5.0, 1) == 1
