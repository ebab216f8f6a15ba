"""`make gpu-check`: the runner with real processes, the report, and (slow) all checks."""

from pathlib import Path

import psutil
import pytest

from outrider.common.files import read_json
from outrider.pipeline.gpu_check import __main__ as command
from outrider.pipeline.gpu_check.check import Check
from outrider.pipeline.gpu_check.checks import CHECKS, synthetic
from outrider.pipeline.gpu_check.report import as_report, as_text
from outrider.pipeline.gpu_check.runner import run_checks, why_no_gpu

ENDLESS_S = 10
"""Time in which a process starts and prints its number, on a loaded machine too."""

SAMPLES = [
    Check(name, f"the {name} one", f"tests.pipeline.gpu_check.samples.{name}", limit_s)
    for name, limit_s in (("passing", 60), ("failing", 60), ("endless", ENDLESS_S))
]


def test_checks_pass_fail_and_exceed_their_limit_in_their_own_processes(tmp_path: Path) -> None:
    outcomes = run_checks(SAMPLES, tmp_path, "no GPU: a test")
    on_gpu = [each for each in outcomes if each.place == "gpu"]
    assert [(each.status, each.reason) for each in on_gpu] == [("skipped", "no GPU: a test")] * 3
    passing, failing, endless = (each for each in outcomes if each.place == "cpu")
    assert (passing.status, passing.figures) == ("pass", {"tokens_per_s": 12.5})
    assert failing.status == "fail" and failing.reason.startswith(
        "0.3 nats apart, 0.1 allowed; log"
    )
    assert endless.status == "fail" and endless.reason.startswith(
        f"exceeded its limit of {ENDLESS_S} s; log"
    )
    left = int((tmp_path / "endless.cpu.log").read_text())
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE

    report = as_report(SAMPLES, outcomes)
    assert report["counts"] == {"gpu skipped": 3, "cpu pass": 1, "cpu fail": 2}
    text = as_text(report)
    assert "pass     cpu  passing" in text and "tokens_per_s: 12.5" in text
    assert "2 cpu fail, 1 cpu pass, 3 gpu skipped" in text


def test_checks_fit_half_an_hour_and_are_functions_of_modules() -> None:
    assert sum(check.limit_s for check in CHECKS) <= 30 * 60
    for check in CHECKS:
        source = Path(command.__file__).parent / "checks" / f"{check.module.rsplit('.', 1)[1]}.py"
        text = source.read_text()
        assert "on_gpu" in text and "on_cpu" in text, check.name


def test_the_simulators_twin_finds_a_wrong_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert synthetic.on_cpu(tmp_path)["drawn_over_chosen"] == pytest.approx(1, abs=0.02)
    module = "outrider.eval.prediction.throughput_simulator.closed_loop_seconds"
    monkeypatch.setattr(module, lambda steps, *_: 0.02 * max(steps))
    with pytest.raises(Exception, match="the simulator differs from a literal loop"):
        synthetic.on_cpu(tmp_path)


@pytest.mark.slow
@pytest.mark.engine
def test_every_check_is_skipped_or_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--out", str(tmp_path)]) == 0
    report = read_json(tmp_path / "report.json")
    gpu = [each["status"] for each in report["checks"] if each["place"] == "gpu"]
    cpu = [each["status"] for each in report["checks"] if each["place"] == "cpu"]
    if why_no_gpu():
        assert gpu == ["skipped"] * len(CHECKS) and cpu == ["pass"] * len(CHECKS)
    else:
        assert gpu == ["pass"] * len(CHECKS) and not cpu
    assert '"failed": []' in capsys.readouterr().out
