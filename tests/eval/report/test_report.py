"""The report from whole results: complete, offline, and the same in every form."""

import json
import re
from collections import Counter

import pytest
from rich.console import Console

from outrider.data.config import PrivacyConfig
from outrider.data.privacy.tally import PrivacyTally
from outrider.eval.bench.scenarios import EVERYTHING
from outrider.eval.config import CostConfig
from outrider.eval.cost import money
from outrider.eval.report.formatting import interval
from outrider.eval.report.k_section import k_reasons
from outrider.eval.report.report import headline, write_report
from outrider.eval.report.results_table import print_table, table_rows
from outrider.eval.results.parts import Drafters
from outrider.eval.summary import summary
from tests.eval.sample_results import sample_replay, sample_results
from tests.eval.sample_run import sample_traffic


@pytest.fixture(scope="module")
def results():
    return sample_results()


@pytest.fixture(scope="module")
def run(results, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    results.write(run / "evaluation" / "results.json")
    (run / "provenance.json").write_text(
        json.dumps({"command_line": ["train-speculator", "--recipe", "<r&d>.yaml"], "git": None})
    )
    attempt = run / "logs" / "attempt_1"
    attempt.mkdir(parents=True)
    lines = [{"step": 1, "loss": 0.4}] + [
        {"step": s, "validation_acceptance_length": [1.5, 2.0 + s / 100]} for s in (0, 50, 100)
    ]
    lines.append({"step": 100, "exported_acceptance_length": [1.5, 2.85]})
    (attempt / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 12'
    )
    write_report(run, run / "evaluation", run)
    return run


def test_the_page_is_whole_and_needs_nothing_else(run):
    page = (run / "report.html").read_text()
    assert len(page) < 3_000_000
    assert (
        not re.findall(r'(?:src|href)="(?!data:)', page)
        and "<script" not in page
        and "@import" not in page
    )
    assert set(re.findall(r"https?://[^\"' ]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert (
        page.count("<svg") == 10
    )  # by position, by k, two engine modes, rates (2 scenarios x 2), slices, training
    assert "&lt;r&amp;d&gt;.yaml" in page and not re.search(r"\bnan\b", page, re.IGNORECASE)


def test_the_page_says_what_publishing_cost(run):
    page = (run / "report.html").read_text()
    assert "own precision: 2.850, -5.00% from the best above, 3.000." in page


def test_all_forms_say_the_same(run, results):
    text = interval(results.served["eager"].speed["1"].custom_over_base)
    console = Console(record=True, width=160)
    print_table(results, console)
    for form in (
        (run / "report.html").read_text(),
        (run / "report.md").read_text(),
        console.export_text(),
    ):
        assert text in form and results.verdict.verdict in form
    report = json.loads((run / "report.json").read_text())
    assert report["counted"] == results.counted.model_dump(mode="json")


def test_request_rates_are_a_section_where_they_were_measured(run, results, tmp_path):
    page, markdown = (run / "report.html").read_text(), (run / "report.md").read_text()
    rates = results.rates["compiled"]["long_in_long_out"]
    row = rates["16"]
    assert row.none.saturated and not rates["1"].none.saturated
    wait, burst = row.none.ttft_ms, row.custom.tokens_per_delivery
    for form in (page, markdown):
        assert "By request rate" in form and interval(row.custom_over_base) in form
        assert "Requests arrive at the times of the log, their gaps scaled to the rate" in form
    assert (
        f"{row.none.tokens_per_s:.0f}* <small>{row.none.request_tokens_per_s:.0f} per request"
        in page
    )
    assert f"{wait.p50:.0f} / {wait.p90:.0f} / {wait.p99:.0f}" in page
    assert (
        f"<td>{row.none.achieved:.2f} saturated</td>" in page
        and f"<td>{burst.value:.2f}</td>" in page
    )
    assert "<h2>Usage scenarios</h2>" in page and "<td>180 / 205 / 220</td>" in page
    assert "| long in long out | 16 |" in markdown

    everything = {
        "rates": {"eager": {EVERYTHING: rates}},
        "scenarios": {EVERYTHING: results.scenarios["long_in_long_out"]},
    }
    for update, sections in (
        (everything, (True, False)),
        ({"rates": {}, "scenarios": {}}, (False, False)),
    ):
        part = results.model_copy(update=update)
        part.write(tmp_path / "evaluation" / "results.json")
        page = write_report(tmp_path, tmp_path / "evaluation", tmp_path).read_text()
        assert ("<h2>By request rate</h2>" in page, "<h2>Usage scenarios</h2>" in page) == sections
        assert ("By request rate" in (tmp_path / "report.md").read_text()) == sections[0]


def test_slices_are_shown_with_intervals_where_sessions_are_enough(run, results):
    acme, small = results.slices["tenant"]
    assert "fidelity" not in results.slices  # it tells nothing apart
    page, markdown = (run / "report.html").read_text(), (run / "report.md").read_text()
    assert f"<td>{interval(acme.ratio)}</td>" in page
    assert small.sessions == 3 and small.ratio.low is None
    assert "<td>tenant: &lt;b&gt;small&lt;/b&gt;</td>" in page and "<b>small" not in page
    assert (
        "| tenant: acme\\|corp | 114 |" in markdown
        and "part of response: reasoning | 120 |" in markdown
    )


def test_personal_data_is_counted_where_it_was_looked_for(run, tmp_path):
    assert (
        "Personal data" not in (run / "report.html").read_text() + (run / "report.md").read_text()
    )
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "results.json").write_text(
        (run / "evaluation" / "results.json").read_text()
    )
    config = PrivacyConfig(mode="surrogate")
    found = Counter({"EMAIL_ADDRESS.prompt": 9731, "CREDIT_CARD.completion": 4})
    left_out = Counter(privacy_regenerate=4)
    tally = PrivacyTally(
        exchanges=5000,
        with_any=1203,
        replaced=1199,
        to_regenerate=7,
        left_out=left_out,
        found=found,
    )
    tally.write(config, tmp_path / "traffic" / "privacy.json")
    page = write_report(tmp_path, tmp_path / "evaluation", tmp_path).read_text()
    for form in (page, (tmp_path / "report.md").read_text()):
        assert (
            "1,203 of 5,000 exchanges contain some" in form
            and "Surrogates replace it in 1,199 prompts; 4 exchanges" in form
        )
        assert "The target wrote 7 responses again" in form
    assert "<td>9731</td>" in page and "Names, addresses and dates of birth have no pattern" in page
    assert (
        json.loads((tmp_path / "report.json").read_text())["privacy"]["found"]["CREDIT_CARD"][
            "completion"
        ]
        == 4
    )


def test_money_is_shown_where_there_are_prices(run, tmp_path):
    assert "<h2>Cost</h2>" not in (run / "report.html").read_text()
    results = sample_results()
    cost = CostConfig(gpu_hour_price=2.5, gpus=8, tokens_per_s=20000, training_gpu_hours=40)
    settings = results.settings | {"cost": cost.model_dump(mode="json")}
    update = {"cost": money(results.served, cost), "settings": settings}
    results = results.model_copy(update=update)
    results.write(tmp_path / "evaluation" / "results.json")
    page = write_report(tmp_path, tmp_path / "evaluation", tmp_path).read_text()
    row = results.cost["compiled"]["8"]
    assert (
        f"<td>{row.saved_share.base:.1%}</td>" in page
        and f"<td>{row.break_even_tokens:,.0f}</td>" in page
    )
    assert "At 2.5 per GPU-hour and 8 GPUs per endpoint" in page


def test_a_mode_slower_than_none_is_named(tmp_path):
    sample_results(custom_speed=0.5).write(tmp_path / "evaluation" / "results.json")
    page = write_report(tmp_path, tmp_path / "evaluation", tmp_path).read_text()
    assert "Slower than no speculation: eager at concurrency 1" in page and "do not ship" in page


def test_the_traffic_is_a_section_where_the_ingest_left_its_summary(run, results, tmp_path):
    assert "<h2>Traffic</h2>" not in (run / "report.html").read_text()
    traffic = sample_traffic()
    results.write(tmp_path / "evaluation" / "results.json")
    (tmp_path / "traffic").mkdir()
    (tmp_path / "traffic" / "summary.json").write_text(json.dumps(traffic))
    page = write_report(tmp_path, tmp_path / "evaluation", tmp_path).read_text()
    markdown = (tmp_path / "report.md").read_text()
    for form in (page, markdown):
        assert (
            "7 = 5 exchanges + 2 rejects" in form
            and "4 of 5 exact completions" in form
            and "not_json" in form
        )
    assert "prompt, tokens: p50 12, p90 18, p99 18, max 18 (n = 5)" in markdown
    assert "&lt;b&gt;acme&lt;/b&gt; 5" in page and page.count("<svg") == 9 + 2
    assert json.loads((tmp_path / "report.json").read_text())["traffic"] == traffic


def test_the_line_for_scripts_keeps_its_contract(results):
    line = summary(results)
    assert set(line["acceptance_length"]) == {"k", "base", "custom", "ratio", "ratio_ci95"}
    assert line["k"] == {"base": 2, "custom": 3}
    assert set(line["tokens_per_s"]) == {"eager", "compiled"}
    assert set(line["tokens_per_s"]["eager"]["8"]) == {
        "none",
        "base",
        "custom",
        "custom_over_base",
        "custom_over_base_ci95",
    }
    assert set(line["replay_vs_engine"]) == {"base", "custom"}
    assert line["verdict"] == "ship" and line["recipe"] == "resume_screening" and line["run_dir"]


def test_the_headline_s_acceptance_is_at_equal_k_and_its_speed_at_each_one_s_own(run, results):
    """Base's own K is 2: at 3 it delivers more tokens per step, and slower."""
    base = sample_replay(0.6).acceptance_length()[2]
    line, speed = summary(results), results.served["eager"].speed["1"]
    acceptance = line["acceptance_length"]
    assert acceptance["k"] == {"base": 3, "custom": 3} and acceptance["base"] == pytest.approx(base)
    assert acceptance["ratio"] == pytest.approx(acceptance["custom"] / base)
    assert line["tokens_per_s"]["eager"]["1"]["base"] == speed.base.tokens_per_s
    tiles = headline(results)
    assert tiles[0].label == "acceptance length, custom / base, both at K = 3"
    assert tiles[0].value == f"{acceptance['ratio']:.2f}×"
    assert tiles[1].label.endswith("concurrency 1, each at its own K")
    for form in ((run / "report.html").read_text(), (run / "report.md").read_text()):
        assert "acceptance length, custom / base, both at K = 3" in form
    rows = {row[0]: row for row in table_rows(results)}
    assert rows["acceptance, replay, K = 3"][2] == f"{base:.3f}"
    assert {"acceptance, engine, K = 3", "acceptance, engine, K = 2 / 3"} <= set(rows)


def test_where_base_drafts_another_number_only_the_headline_names_both(results):
    found = results.model_copy(update={"replay": None, "counted_same_k": None})
    assert headline(found)[0].label == "acceptance length, custom / base, at K = 2 / 3"
    assert summary(found)["acceptance_length"]["k"] == {"base": 2, "custom": 3}
    assert summary(found)["acceptance_length"]["ratio"] == results.counted.ratio.value


def test_each_k_and_its_reason_are_shown_and_both_at_the_same_k(run, results):
    page, markdown = (run / "report.html").read_text(), (run / "report.md").read_text()
    assert (results.k.base, results.k.custom) == (2, 3)
    alike = results.served["eager"].speed["1"].same_k.custom_over_base
    for form in (page, markdown):
        assert "K = 2 for base, 3 for custom" in form
        assert "both at K = 3" in form and interval(alike) in form
    base, custom, timing = k_reasons(results.choice)
    reason = results.choice.reason.base
    assert f"- {base}\n" in markdown and base.capitalize() in page and custom.capitalize() in page
    gain = reason.larger if reason.larger else reason.smaller
    assert f"{100 * gain.value:.1f} % (interval [{100 * gain.low:.1f}, " in base
    assert timing.startswith("Steps timed in 12 rounds at 1 requests, 12 rounds at")
    assert ("; decided" in base) == (not reason.undecided)
    undecided = reason.model_copy(update={"undecided": (3,)})
    both = Drafters(base=undecided, custom=results.choice.reason.custom)
    base = k_reasons(results.choice.model_copy(update={"reason": both}))[0]
    assert "not decided against 3, the estimate was taken" in base
    line = summary(results)["same_k"]
    assert line["k"] == 3 and line["tokens_per_s"]["eager"]["1"]["custom_over_base"] == alike.value
    assert (
        line["tokens_per_s"]["eager"]["1"]["base"]
        != results.served["eager"].speed["1"].base.tokens_per_s
    )
