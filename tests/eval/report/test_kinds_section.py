"""The section on kinds: one table, one chart and the reason, in every form of the report."""

import re

from outrider.eval.report.kinds_section import head, table
from outrider.eval.report.report import write_report
from outrider.eval.results.report import Results
from tests.eval.sample_kinds import sample_kinds
from tests.eval.sample_results import sample_results


def test_the_page_has_every_kind_and_why(tmp_path) -> None:
    results = sample_results()
    kinds = sample_kinds(results)
    assert kinds.chosen == "eagle3"
    results = results.model_copy(update={"kinds": kinds})
    results.write(tmp_path / "evaluation" / "results.json")
    assert Results.read(tmp_path / "evaluation" / "results.json") == results
    page = write_report(tmp_path, tmp_path / "evaluation", tmp_path).read_text()
    markdown = (tmp_path / "report.md").read_text()
    rows = table(kinds)
    # No speculation and three kinds, at three concurrencies.
    assert len(rows) == 12 and [row.kind for row in rows[::3]] == [
        "no speculation",
        "eagle3 (chosen)",
        "mtp",
        "p_eagle",
    ]
    eagle3, p_eagle = rows[3], rows[9]
    assert eagle3.parameters == "1.91 M" and eagle3.minutes == "4.2" and eagle3.megabytes == "3.8"
    assert re.fullmatch(r"\d+ \[\d+, \d+\]", eagle3.predicted)
    assert all(re.fullmatch(r"\d+ \[\d+, \d+\]", cell) for cell in eagle3.served)
    assert p_eagle.served == ["-", "-"]  # it was not served
    speed = results.served["eager"].speed["1"].custom.tokens_per_s
    assert eagle3.served[0].startswith(f"{speed:.0f} [")
    for form in (page, markdown):
        assert kinds.reason in form.replace("&#39;", "'") and "Kinds of drafter" in form
        for row in rows:
            assert row.predicted in form and row.step_ms in form
    assert f"<th>{head(kinds)[-1]}</th>" in page
    assert page.count("<svg") == 10  # 9 without the section and without a training chart


def test_one_kind_has_no_section(tmp_path) -> None:
    sample_results().write(tmp_path / "evaluation" / "results.json")
    page = write_report(tmp_path, tmp_path / "evaluation", tmp_path).read_text()
    assert "Kinds of drafter" not in page and page.count("<svg") == 9
    assert "Kinds of drafter" not in (tmp_path / "report.md").read_text()
