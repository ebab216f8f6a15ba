"""What the report takes from the run's other stages."""

from pathlib import Path

from outrider.common.files import write_json
from outrider.common.lost_ends import lost_ends
from outrider.eval.report.report import write_report
from tests.eval.sample_results import sample_results


def test_what_length_limits_cut_is_in_every_form_of_the_report(tmp_path: Path) -> None:
    captured, _ = lost_ends([90, 120], [5, 5], 99, "serving.engine.max_model_len = 100")
    trained, _ = lost_ends([90, 99], [5, 5], 64, "training.row_tokens = 64")
    write_json(tmp_path / "features" / "summary.json", {"too_long": captured._asdict()})
    write_json(tmp_path / "training" / "result.json", {"lost_ends": trained._asdict()})
    results = sample_results().model_copy(update={"lost_ends": ("1 prompt is not sent",)})
    results.write(tmp_path / "evaluation" / "results.json")
    page = write_report(tmp_path, tmp_path / "evaluation", tmp_path).read_text()
    others = ((tmp_path / f"report.{form}").read_text() for form in ("md", "json"))
    for form in (page, *others):
        assert "max_model_len = 100: of 2 responses 1 lose their end (21 tokens)" in form
        assert "row_tokens = 64: of 2 responses 2 lose their end (61 tokens)" in form
        assert "1 prompt is not sent" in form


def test_a_check_that_raised_is_in_the_report(tmp_path: Path) -> None:
    results = sample_results()
    task = results.verification.task
    assert task is not None
    raised = task.model_copy(update={"errors": 3, "first_error": "KeyError at checks.py, line 7"})
    verification = results.verification.model_copy(update={"task": raised})
    results = results.model_copy(update={"verification": verification})
    results.write(tmp_path / "evaluation" / "results.json")
    page = write_report(tmp_path, tmp_path / "evaluation", tmp_path).read_text()
    for form in (page, (tmp_path / "report.md").read_text()):
        assert "on 3 responses, first KeyError at checks.py, line 7" in form
