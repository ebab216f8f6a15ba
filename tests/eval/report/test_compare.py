"""Runs side by side, and the same speculator on newer traffic: changes, and chance."""

import math
from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.eval.report.change import change
from outrider.eval.report.compare import compare_runs, history, render_comparison, short_names
from outrider.eval.results.parts import VARIANTS, Drafters, interval
from outrider.eval.results.report import SpeculatorIdentity
from tests.eval.sample_results import SPREAD, estimate, sample_results
from tests.eval.sample_results import history_report as report

OTHER = SpeculatorIdentity(kind="eagle3", weights_sha256="cd" * 32)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three evaluations, the last of another speculator with fewer slices."""
    folder = tmp_path_factory.mktemp("runs")
    slices = sample_results().slices
    fewer = slices | {"tenant": slices["tenant"][:1]}
    made = []
    for name, whole in (
        ("march", report(0, 2, 3)),
        ("<i>june<|i>", report(9, 2, 2.4)),
        ("july", report(99, 2, 2, speculator=OTHER, slices=fewer)),
    ):
        whole.write(folder / name / "report.json")
        made.append(folder / name)
    return made


def test_figures_of_all_runs_and_a_dash_where_one_has_none(runs):
    compared = compare_runs(runs)
    by_name = compared.figures
    assert by_name["verdict"] == ["ship"] * 3 and by_name["K, base and custom"] == ["2 / 3"] * 3
    assert by_name["kind of custom"] == ["mtp", "mtp", "eagle3"]
    assert by_name["acceptance, tenant: <b>small</b>, custom / base"][2] is None
    assert "tokens/s, eager, concurrency 1, custom / none" in by_name
    (note,) = compared.notes
    assert "differ in kind of custom" in note


def test_runs_on_two_model_runners_are_noted(tmp_path):
    first = report(0, 2, 3)
    runners = first.runners.model_copy(update=dict.fromkeys(VARIANTS, "v2"))
    for name, whole in (("cpu", first), ("gpu", report(9, 2, 3, runners=runners))):
        whole.write(tmp_path / name / "report.json")
    compared = compare_runs([tmp_path / "cpu", tmp_path / "gpu"])
    figure = "model runner, none / base / custom"
    assert compared.figures[figure] == ["V1 / V1 / V1", "V2 / V2 / V2"]
    assert compared.notes == [f"The runs differ in {figure}: compare their figures with care."]


def test_page_and_terminal_say_what_changed(runs):
    compared = compare_runs(runs)
    page, markdown = (render_comparison(compared, form) for form in ("html", "markdown"))
    for form in (page, markdown):
        assert "drift: it gains less over base" in form and "1.50 [1.47, 1.53]" in form
        assert "abababababab" in form and "cdcdcd" not in form
    assert "&lt;i&gt;june" in page and "<i>june" not in page


def test_the_page_begins_with_title_date_and_which_run_gains(runs):
    compared = compare_runs(runs)
    title = "3 runs of nano_r1 on resume_screening compared, 2025-10-09 to 2026-01-16"
    page, markdown = (render_comparison(compared, form) for form in ("html", "markdown"))
    assert page.count(title) == 2 and f"<h1>{title}</h1>" in page
    assert markdown.startswith(f"# {title}\n\nWhich run gains most cannot be told: ")
    assert "march: nano_r1 on resume_screening, 2025-10-09; custom is an MTP layer" in markdown
    ratio = compared.gains.ratios["no speculation"]["march"]
    assert page.count(interval(ratio)) >= 2  # in the chart and in the table
    assert '<div class="bar"><span>&lt;i&gt;june&lt;|i&gt;</span>' in page
    assert "custom / no speculation | 1.83 [1.76, 1.91]" in markdown


def test_names_are_short_if_they_differ():
    assert short_names([Path("runs/a/report.json"), Path("runs/b")]) == ["a", "b"]
    assert short_names([Path("x/a"), Path("y/a")]) == ["x/a", "y/a"]


def test_one_run_is_no_comparison(runs):
    with pytest.raises(OutriderError, match="name at least two runs"):
        compare_runs(runs[:1])


def test_a_run_without_exact_replay_is_refused(tmp_path):
    report(0, 2, 3, replay=None).write(tmp_path / "report.json")
    with pytest.raises(OutriderError, match="has no exact replay"):
        compare_runs([tmp_path])


def test_a_speculator_is_followed_in_time_whatever_the_order():
    (series,) = history(
        {
            "june": report(90, 2.0, 2.4),
            "march": report(0, 2.0, 3.0),
            "april": report(30, 2.0, 3.01),
            "may": report(60, 1.7, 2.55),
            "other": report(60, 2.0, 3.0, speculator=OTHER),
        }
    )
    assert series.weights == "ab" * 32
    assert [point.run for point in series.points] == ["march", "april", "may", "june"]
    readings = [point.reading for point in series.points]
    assert readings[0] == "" and series.points[0].over_base is None
    assert readings[1].startswith("no significant change (× 1.003")
    assert readings[2].startswith("the traffic is harder to draft, for base too (× 0.850")
    assert readings[3].startswith("drift: it gains less over base (× 0.800")


def test_what_was_measured_otherwise_is_not_compared():
    first = report(5, 2.0, 3.0, heldout_until=None)
    choice = first.choice.model_copy(update={"k": Drafters[int](base=2, custom=2)})
    (series,) = history({"b": first, "a": report(1, 2.0, 2.0, choice=choice)})
    assert [point.run for point in series.points] == ["b", "a"]  # as given: one has no time
    assert series.points[1].over_base is None
    other_k = "not comparable: choice.k base=2 custom=3, then base=2 custom=2"
    assert series.points[1].reading == other_k


def test_chance_is_shared_among_the_runs():
    # z of about 2.1, p = 0.036: beyond chance as the only comparison, not as one of three.
    error = math.log1p(SPREAD) / 1.959964 * math.sqrt(2)
    one = estimate(1.0)
    later = estimate(math.exp(2.1 * error))
    assert change(one, later, 1).beyond_chance and not change(one, later, 3).beyond_chance
    fixed = estimate(1.0, spread=0.0)
    assert not change(fixed, fixed, 1).beyond_chance
    assert change(fixed, estimate(2.0, spread=0.0), 1).beyond_chance
