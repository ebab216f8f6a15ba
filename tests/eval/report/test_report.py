"""The report from whole results: complete, offline, and the same in every form."""

import ast
import json
import re
from pathlib import Path

import jsonschema
import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.common.lost_ends import count_lost_ends as cut
from outrider.data.features.feature_writer import FeatureWriter
from outrider.eval.config import CostConfig, EvalConfig
from outrider.eval.gate import judge_findings
from outrider.eval.report.report import lost_ends_in_words, sections_of, write_report
from outrider.eval.results.parts import VARIANTS, interval
from outrider.eval.results.report import Report
from outrider.eval.results.sections import Block, OnPolicy, ServedSpeed, SpeedRow
from outrider.eval.summary import HOURS_A_MONTH, report_summary, serving_costs
from outrider.speculators.features import FINAL_NORM, FeatureSpec, SequenceStates
from tests.eval.sample_results import sample_replay, sample_results
from tests.eval.sample_run import sample_on_policy, write_sample_run
from tools.reference import report_schema


@pytest.fixture(scope="module")
def results():
    return sample_results()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose report has every section."""
    folder = tmp_path_factory.mktemp("run")
    write_sample_run(folder, "<b>Kanarienvogel</b>")
    return folder


@pytest.fixture(scope="module")
def report(run):
    return Report.read(run / "report.json")


@pytest.fixture(scope="module")
def forms(run):
    return [(run / f"report.{form}").read_text() for form in ("html", "md")]


def rendered(report: Report, run: Path) -> list[str]:
    """The page and the Markdown of this report."""
    write_report(report, run, run)
    return [(run / f"report.{form}").read_text() for form in ("html", "md")]


def test_the_page_is_whole_and_needs_nothing_else(forms):
    page, markdown = forms
    assert len(page) < 3_000_000 and page.startswith("<!doctype html>")
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "<script" not in page and "@import" not in page
    assert set(re.findall(r"https?://[^\"' ]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    # Tokens per step by K, by position, training, two scenarios, kinds.
    assert page.count("<svg") == 6 and "<svg" not in markdown
    for form in forms:
        assert not re.search(r"\b(nan|None|Undefined)\b", form)


def test_the_page_explains_itself_outside_the_checkout(forms, results, tmp_path, capsys):
    """Whoever gets only the page has no docs/ folder."""
    unchecked = sample_on_policy()
    unchecked["all"] |= {"not_checked": 3, "masked": 2}
    own_text = OnPolicy(cause="foreign", text="of another model", sequences=9, not_checked=3)
    off_policy = results.model_copy(update={"own_text": own_text, "on_policy": unchecked})
    judged = off_policy.model_copy(
        update={"verdict": judge_findings(off_policy, EvalConfig().gate)}
    )
    texts = [*forms]
    for report in (sample_results(custom_speed=0.5), judged):
        texts += rendered(report, tmp_path)
    texts.append(capsys.readouterr().err)
    assert [text[:40] for text in texts if "docs/" in text] == []
    for form in forms:
        assert "drafts that continue an earlier occurrence" in form and "Terms" in form


def test_no_sentence_of_an_evaluation_names_the_docs_folder():
    """Whatever the outcome of its checks; docstrings may name it."""
    named = []
    for file in (Path(__file__).parents[3] / "eval").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        named += [
            f"{file.name}: {node.value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and id(node) not in docstrings
            if isinstance(node.value, str) and "docs/" in node.value
        ]
    assert named == []


def test_names_and_customer_text_are_escaped_and_only_the_owner_s(forms, run):
    page, markdown = forms
    assert "&lt;b&gt;Kanarienvogel&lt;/b&gt;" in page and "<b>Kanarienvogel" not in page
    assert "Kanarienvogel" in markdown and "## Step by step" in markdown
    for form in ("html", "md", "json"):
        assert (run / f"report.{form}").stat().st_mode & 0o077 == 0
    assert "tenant: &lt;b&gt;small&lt;/b&gt;" in page and "<b>small" not in page
    assert "| tenant: acme\\|corp | 114 |" in markdown
    assert "0123456789abcdef" in page and "x" * 300 in page


def test_a_table_has_as_many_cells_in_every_row(forms):
    page, markdown = forms
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        assert len({len(re.findall(r"<t[hd]", row)) for row in table.split("</tr>")[:-1]}) == 1
    for table in re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE):
        rows = [row.replace("\\|", "") for row in table.splitlines()]
        assert rows[1].startswith("|---") and len({row.count("|") for row in rows}) == 1


def test_both_forms_have_every_figure_that_people_act_on(forms, report):
    speed = report.served["eager"].speed["1"]
    rate = report.rates["compiled"]["long_in_long_out"]["16"]
    acme, small = report.slices["tenant"]
    ratio = report.served["compiled"].speed["8"].custom_over_base
    assert rate.none.saturated and small.ratio.low is None
    wanted = [
        "Ships: all ",
        "31.3 EUR",
        *(check.name for check in report.verdict.checks),
        *(check.seen for check in report.verdict.checks),
        interval(speed.custom_over_base),
        interval(speed.custom_over_none),
        f"{rate.none.request_tokens_per_s:.0f}*",
        f"{rate.custom_over_base:.3f}",
        f"{rate.none.ttft_ms.p50:.0f} / {rate.none.ttft_ms.p90:.0f} / {rate.none.ttft_ms.p99:.0f}",
        "180 / 205 / 220",
        "64.0%",  # of prompt tokens were found in the prefix cache, of 60 % in production
        "60.0%",
        "123,904",
        interval(acme.ratio),
        f"{1 - 1 / ratio.value:.1%} [{1 - 1 / ratio.low:.1%}, {1 - 1 / ratio.high:.1%}]",
        report.both_line,
        "eagle3 (chosen)",
        "1.91 M",
        "7 = 5 exchanges + 2 rejects",
        "p50 12, p90 18, p99 18, max 18 (n = 5)",
        "On-policy: yes",
        "1,203 of 5,000 exchanges contain personal data",
        "The target wrote 7 responses again",
        "9731",
        "acceptance length 3.50",
        "within 120 ms and at most 41.3 ms per token (no speculation, concurrency 1)",
        "1 for 50%, 2 to 4 for 40%, 5 to 8 for 8%, more, which was not measured, for 2%",
        "estimated from response tokens at 30 ms per token",
        "after 260 / 340 / 390 tokens (p50 / p90 / p99), as in the log",
        "9 and more (not measured): 0",
    ]
    for form in forms:
        text = form.replace("&#39;", "'")
        missing = [figure for figure in wanted if figure not in text]
        assert not missing


def test_ratios_across_model_runners_are_named(results, tmp_path):
    """Suffix lookup runs in V1 only, all else on a GPU in V2."""
    for form in rendered(results, tmp_path):
        assert "All are served by vLLM's model runner V1." in form.replace("&#39;", "'")
    lookups = results.choice.lookups
    lookups = lookups | {"suffix": lookups["ngram"].model_copy(update={"runner": "v1"})}
    choice = results.choice.model_copy(update={"lookups": lookups, "lookup": "suffix"})
    runners = results.runners.model_copy(update=dict.fromkeys(VARIANTS, "v2"))
    update = {"choice": choice, "runners": runners}
    for form in rendered(results.model_copy(update=update), tmp_path):
        assert (
            "model runner is V1 for suffix lookup and V2 for none, base, custom. Ratios of tokens/s"
            " across runners also compare the runners: custom / suffix lookup." in form
        )
    update["runners"] = runners.model_copy(update={"custom": "v1"})
    for form in rendered(results.model_copy(update=update), tmp_path):
        assert "the runners: custom / base, custom / none." in form


def test_sections_without_figures_are_left_out(results, tmp_path):
    without = {"rates": {}, "scenarios": {}, "slices": {}, "capacity": {}}
    bare = results.model_copy(update=without)
    for form in rendered(bare, tmp_path):
        for section in (
            "Kinds of drafter",
            "Cost",
            "Speed by request rate",
            "Capacity",
            "Traffic",
            "Step by step",
        ):
            assert section not in form
        assert "no provenance.json" in form


def test_a_mode_slower_than_none_is_named(tmp_path):
    for form in rendered(sample_results(custom_speed=0.5), tmp_path):
        assert "Slower than no speculation: eager at concurrency 1" in form
        assert "Does not ship: of " in form
        assert '<b class="failed">Failed</b>' in form or "- **Failed**: " in form


def test_what_was_cut_or_raised_is_in_every_form(results, tmp_path):
    captured, _ = cut([90, 120], [5, 5], 99, "serving.engine.max_model_len = 100")
    trained, _ = cut([90, 99], [5, 5], 64, "training.row_tokens = 64")
    write_json(tmp_path / "features" / "summary.json", {"too_long": captured._asdict()})
    write_json(tmp_path / "training" / "result.json", {"lost_ends": trained._asdict()})
    raised = {"errors": 3, "first_error": "KeyError at checks.py, line 7"}
    task = results.verification.task.model_copy(update=raised)
    verification = results.verification.model_copy(update={"task": task})
    lost = (*lost_ends_in_words(tmp_path, tmp_path), "1 prompt is not sent")
    update = {"lost_ends": lost, "verification": verification}
    for form in rendered(results.model_copy(update=update), tmp_path):
        assert "max_model_len = 100: of 2 responses 1 are cut off (21 tokens lost)" in form
        assert "row_tokens = 64: of 2 responses 2 are cut off (61 tokens lost)" in form
        assert "1 prompt is not sent" in form
        assert "on 3 responses, first KeyError at checks.py, line 7" in form


def test_further_answers_of_the_target_are_told(results, tmp_path):
    features = tmp_path / "features"
    states = SequenceStates(torch.tensor([7, 8]), 1, {FINAL_NORM: torch.zeros(2, 4)})
    with FeatureWriter(features, FeatureSpec(()).stored(4), {"made": "by a test"}) as writer:
        for name in ("0-1", "0-2", "0-1+1", "0-2+1", "0-1+2"):
            writer.write(name, states)
    assert sections_of(tmp_path)["further_answers"] == 3
    write_json(features / "quarantine.json", {"sequences": {"0-2": 0.5}})
    update = {"further_answers": sections_of(tmp_path)["further_answers"]}
    for form in rendered(results.model_copy(update=update), tmp_path):
        assert "trained on 2 further answers of the target to logged prompts" in form
    assert sections_of(tmp_path / "other")["further_answers"] == 0
    for form in rendered(results, tmp_path):
        assert "further answers" not in form


def test_acceptance_is_at_equal_k_and_speed_at_each_one_s_own(results, tmp_path):
    """Base's own K is 2: at 3 it delivers more tokens per step, and slower."""
    base = sample_replay(0.6).acceptance_length()[2]
    line = report_summary(results)
    speed = results.served["eager"].speed["1"]
    acceptance = line["acceptance_length"]
    assert acceptance["k"] == {"base": 3, "custom": 3} and line["k"] == {"base": 2, "custom": 3}
    assert acceptance["base"] == pytest.approx(base)
    assert acceptance["ratio"] == pytest.approx(acceptance["custom"] / base)
    own = line["tokens_per_s"]["eager"]["1"]
    assert own["base"] == speed.base.tokens_per_s and own["estimator"] == "measured"
    # Where base drafts another number only, the table names both.
    found = results.model_copy(update={"replay": None, "slices": {}})
    for form in rendered(found, tmp_path):
        assert "engine, at K = 2 / 3" in form
    assert report_summary(found)["acceptance_length"]["ratio"] == results.counted.ratio.value


@pytest.mark.parametrize("custom_speed", [1.4, 0.5])
def test_the_terminal_s_summary_has_25_lines(custom_speed, tmp_path, capsys):
    missing = {"missing_lookups": {"suffix": "arctic-inference is not installed"}}
    write_report(sample_results(custom_speed).model_copy(update=missing), tmp_path, tmp_path)
    lines = capsys.readouterr().err.rstrip().splitlines()
    assert len(lines) <= 25, "\n".join(lines)
    assert "3 more loads are in report.md and report.html" in " ".join(lines)


def test_nothing_of_the_first_screen_is_said_twice(forms):
    """The verdict's sentences and the figures of the tiles occur once."""
    for form in forms:
        assert form.count("as many tokens/s as") == 1
        assert form.count("to the first token, median") == 1


def test_a_report_is_as_its_schema_says_and_has_every_key(run):
    written = json.loads((run / "report.json").read_text())
    schema = json.loads(report_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(written)
    assert set(schema["properties"]) == set(written)
    for name in ("privacy", "samples", "cost", "general", "on_policy", "traffic", "kinds"):
        assert written[name], name
    described = [("Report", schema), *schema["$defs"].items()]
    for name, value in described:
        for key, inner in value["properties"].items():
            assert inner.get("description") or "$ref" in inner, f"{name}.{key}"


def test_another_version_or_shape_is_an_error_that_names_it(results, tmp_path):
    path = tmp_path / "report.json"
    results.write(path)
    assert Report.read(path) == results
    path.write_text(json.dumps(results.model_dump(mode="json") | {"version": 5}))
    with pytest.raises(OutriderError, match=r"report.json: version 5, but this Outrider reads 19"):
        Report.read(path)


def served(none, base, custom):
    speeds = {"none": none, "base": base, "custom": custom}
    blocks = {
        variant: Block.model_construct(tokens_per_s=speed) for variant, speed in speeds.items()
    }
    row = SpeedRow.model_construct(**blocks)
    return {"compiled": ServedSpeed.model_construct(speed={"8": row})}


def test_cost_and_hours_are_those_by_hand():
    cost = CostConfig(gpu_hour_price=3.6, tokens_per_s=2000.0)
    row = serving_costs(served(500.0, 1000.0, 1250.0), cost, gpus=8)["compiled"]["8"]
    # 8 GPUs at 3.6 an hour are 0.008 a second.
    assert row.per_million_tokens.model_dump() == pytest.approx(
        {"none": 16.0, "base": 8.0, "custom": 6.4}
    )
    assert row.gpu_hours_a_month.model_dump() == pytest.approx(
        {
            "none": 4 * 8 * HOURS_A_MONTH,
            "base": 2 * 8 * HOURS_A_MONTH,
            "custom": 1.6 * 8 * HOURS_A_MONTH,
        }
    )
