"""A real evaluation, small: two servers, load, verification and capture in vLLM, and what it leaves."""

from types import SimpleNamespace

import psutil
import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.data.features.feature_store import FeatureWriter
from outrider.eval.bench.measure import Measured
from outrider.eval.bench.scenarios import EVERYTHING
from outrider.eval.config import EvalConfig, GateConfig
from outrider.eval.evaluate import evaluate
from outrider.eval.report.schema import Report
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.speculators.kinds.mtp_checkpoint import load_mtp, save_mtp
from tests.eval.sample_results import EVALUATION, sample_blocks, sample_results
from tests.tiny import write_tiny_target

TEXTS = [
    "How many apples are left?",
    "List the total of this receipt.",
    "Is this candidate a fit?",
    "Where is my order?",
]


@pytest.fixture(scope="module")
def case(nano_r1, tmp_path_factory):
    """Six held-out conversations, a validation part, and a custom speculator whose projection is noise: it drafts worse than the base."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(nano_r1)

    def prompt(number):
        conversation = [{"role": "user", "content": f"{TEXTS[number % 4]} ({number})"}]
        text = tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True
        )
        return text, tokenizer.encode(text, add_special_tokens=False)

    completion = tokenizer.encode("one, two, three, four", add_special_tokens=False)
    return _case(
        nano_r1, tmp_path_factory.mktemp("evaluation") / "run", prompt, completion, depth=3
    )


def _case(target, run, prompt, completion, depth):
    """A run directory as far as the evaluation, with invented states; `prompt(number)` gives text and token ids."""
    from datasets import Dataset

    torch.manual_seed(0)
    rows = []
    for number in range(9):
        text, prompt_ids = prompt(number)
        rows.append(
            {
                "sequence_id": f"q{number}",
                "session": f"s{number // 2}",
                "time": 1.7e9 + 60 * number,
                "token_ids": prompt_ids + completion,
                "completion_start": len(prompt_ids),
                "temperature": 0.6,
                "top_p": 0.95,
                "prompt_text": text,
            }
        )
    Dataset.from_list(rows).save_to_disk(run / "sequences")
    hidden_size = read_json(target / "config.json")["hidden_size"]
    with FeatureWriter(run / "features", hidden_size, {"made": "by a test"}) as writer:
        for row in rows:
            states = torch.randn(len(row["token_ids"]), hidden_size)
            writer.write(row["sequence_id"], row["token_ids"], states, row["completion_start"])
    speculator = load_mtp(target)
    with torch.no_grad():
        speculator.eh_proj.weight.normal_(std=float(speculator.eh_proj.weight.std()))
    save_mtp(speculator, target, run / "speculator")
    ids = [row["sequence_id"] for row in rows]
    arguments = {
        "recipe": "a_test",
        "run_dir": run,
        "target": TargetConfig(model=str(target)),
        "speculator_dir": run / "speculator",
        "features_dir": run / "features",
        "sequences_dir": run / "sequences",
        "parts": {"train": [], "validation": ids[6:], "heldout": ids[:6]},
        "slices": {"tenant": {"first": ids[:3], "second": ids[3:]}},
        "depth": depth,
        "serving": ServingConfig(
            engine=EngineConfig(max_num_seqs=8, max_model_len=512, kv_cache_gb=0.25)
        ),
        "evaluation": EvalConfig(
            k=2,
            engine_modes=["eager"],
            concurrency=[1, 2],
            requests=2,
            repeats=2,
            max_tokens=12,
            rates=[4],
            rate_seconds=1.5,
            verification_requests=4,
            verification_max_tokens=48,
            bootstrap_samples=100,
        ),
        "out_dir": run / "evaluation",
        "report_dir": run,
        "log_dir": run / "logs",
    }
    return SimpleNamespace(run=run, arguments=arguments)


def test_more_requests_at_once_than_the_engine_takes_is_refused(case):
    wide = case.arguments["evaluation"].model_copy(update={"concurrency": [1, 16]})
    with pytest.raises(
        OutriderError, match=r"eval\.concurrency has 16, but serving\.engine\.max_num_seqs is 8"
    ):
        evaluate(**case.arguments | {"evaluation": wide})


def test_measurements_are_kept_and_results_made_anew(tmp_path, monkeypatch, nano_r1):
    """All but the engine, on the tiny target: what an interrupted evaluation does not repeat, and what a changed gate does to the verdict."""
    target = write_tiny_target(tmp_path / "target")
    case = _case(
        target,
        tmp_path / "run",
        lambda number: (f"prompt {number}", [*range(2, 8 + number)]),
        list(range(10, 22)),
        depth=4,
    )
    outputs = {
        "sampled": {
            v: {"counters": counters, "token_ids": [[1, 2]] * 3}
            for v, counters in sample_blocks_counters().items()
        }
    }
    asked = []

    def served(context, servers, load, k, requests):
        asked.append(context.cache.digest)
        return Measured({"eager": sample_blocks(1.4)}, outputs)

    findings = sample_results()["verification"]
    monkeypatch.setattr("outrider.eval.evaluate.serve", served)
    monkeypatch.setattr("outrider.eval.evaluate.examine", lambda *_, **__: findings)
    arguments = case.arguments | {"evaluation": EVALUATION.model_copy(update={"k": 3})}
    line = evaluate(**arguments)
    assert line["acceptance_length"]["k"] == 3 and line["acceptance_length"]["ratio"] > 1.2
    results = read_json(case.run / "evaluation" / "results.json")
    assert results["replay"]["sequences"] == 6 and results["replay"]["sessions"] == 3
    assert results["choice"]["sequences"] == 3 and len(results["replay"]["by_k"]["custom"]) == 4
    kept = sorted(path.name for path in (case.run / "evaluation" / "steps").iterdir())
    assert kept == [
        "replay_heldout_base.json",
        "replay_heldout_custom.json",
        "replay_validation_custom.json",
        "verification_findings.json",
    ]

    before = [
        path.stat().st_mtime_ns for path in sorted((case.run / "evaluation" / "steps").iterdir())
    ]
    strict = EVALUATION.model_copy(update={"k": 3, "gate": GateConfig(min_speed_ratio=2.0)})
    assert evaluate(**arguments | {"evaluation": strict})["verdict"] == "do not ship"
    assert [
        path.stat().st_mtime_ns for path in sorted((case.run / "evaluation" / "steps").iterdir())
    ] == before
    other = EVALUATION.model_copy(update={"k": 3, "max_tokens": 99})
    evaluate(**arguments | {"evaluation": other})
    assert asked[0] == asked[1] != asked[2]

    swept = EVALUATION.model_copy(update={"k": 3, "interpolation": [0.5, 0.9]})
    evaluate(**arguments | {"evaluation": swept})
    assert asked[3] == asked[0]  # nothing is served anew for it
    rows = read_json(case.run / "evaluation" / "results.json")["interpolation"]
    assert [row["share"] for row in rows] == [0.5, 0.9] and not (
        case.run / "evaluation" / "mixtures"
    ).exists()
    assert rows[0]["heldout"]["acceptance_length"] != rows[1]["heldout"]["acceptance_length"]
    page = (case.run / "report.html").read_text()
    assert (
        f"<td>{rows[0]['heldout']['ratio']['value']:.2f} [" in page
        and "Between base and custom" in page
    )

    assert results["samples"] is None and "Step by step" not in page
    (target / "tokenizer.json").symlink_to(nano_r1 / "tokenizer.json")
    evaluate(**arguments | {"show_samples": True})
    private = case.run / "evaluation" / "results.json"
    examples = read_json(private)["samples"]["examples"]
    assert asked[4] == asked[0] and len(examples) == 3 and private.stat().st_mode & 0o077 == 0
    assert all(example["tokens"] == 11 for example in examples)
    assert "Step by step" in (case.run / "report.html").read_text()
    Report.model_validate(
        read_json(case.run / "report.json")
    )  # every key described, and none missing
    evaluate(**arguments)
    assert (
        read_json(private)["samples"] is None
        and "Step by step" not in (case.run / "report.html").read_text()
    )


def sample_blocks_counters():
    """One pass's counters per variant."""
    return {block["variant"]: block["counters"] for block in sample_blocks()}


def children():
    """Living processes below this one; the resource trackers of this interpreter's own pools are among them."""
    living = (
        child
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
    )
    return {child.pid for child in living}


def written(run):
    """The servers' logs, and when each was last written to."""
    return {path: path.stat().st_mtime_ns for path in run.rglob("server_*.log")}


@pytest.mark.engine
def test_an_evaluation_from_servers_to_report(case):
    before = children()
    line = evaluate(**case.arguments)
    results = read_json(case.run / "evaluation" / "results.json")

    speed = line["tokens_per_s"]["eager"]
    assert set(speed) == {"1", "2"} and all(
        speed["1"][variant] > 0 for variant in ("none", "base", "custom")
    )
    assert line["acceptance_length"]["k"] == 2 and 1 <= line["acceptance_length"]["base"] <= 3
    alternated = {
        (block["concurrency"], block["variant"])
        for block in read_json(case.run / "evaluation" / "steps" / "speed_eager.json")["result"]
        if block["alternated"]
    }
    assert alternated == {(1, "base"), (1, "custom")}
    assert results["served"]["eager"]["speed"]["1"]["custom_over_base"]["clusters"] == 4  # pairs
    counted = results["counted"]["base"]
    assert counted["drafts"] > 0 and len(counted["cumulative"]) == 2

    # The servers' own steps account for the time that their load generator saw: seconds for seconds, tokens for tokens.
    for concurrency in ("1", "2"):
        predicted = results["predicted"]["eager"][concurrency]
        assert -0.7 < predicted["none"]["tokens_per_s"]["as_served"]["difference"] < 2
        assert predicted["custom"]["over_none"]["timed"] is None  # k was set, so no step was timed
        assert all(
            predicted[variant]["step_ms"]["as_served"] > 0 for variant in ("none", "base", "custom")
        )

    # Under arrivals of their own, too; all of it is counted by the engine alone.
    asked = results["rates"]["eager"][EVERYTHING]["4"]
    assert (
        asked["arrivals"]["source"] == "log" and results["scenarios"][EVERYTHING]["requests"] == 6
    )
    for variant in ("none", "base", "custom"):
        figures = asked[variant]
        assert (
            figures["requests"] == 6
            and figures["offered"] == pytest.approx(4)
            and figures["seconds"] > 1.25
        )
    assert asked["base"]["acceptance_length"] > asked["none"]["acceptance_length"] == 1
    assert asked["none"]["tokens_per_delivery"]["value"] >= 1

    # The engine ran the speculators that replay computes, each in its turn: the same steps for the same responses.
    assert line["acceptance_length"]["ratio"] < 0.95
    for regime in ("greedy", "sampled"):
        for variant in ("base", "custom"):
            detail = results["verification"]["replay_vs_engine"]["details"][regime][variant]
            assert detail["delivered_tokens"] > 50
            assert abs(detail["relative_difference"]) < 0.03, (regime, variant, detail)
    for variant in ("base", "custom"):
        assert results["verification"]["greedy"][variant]["unexplained"] == 0
    text = results["verification"]["sampled_text"]
    assert abs(text["custom"]["tail_share"] - text["none"]["tail_share"]) < 0.02
    assert not (case.run / "evaluation" / "verification_states").exists()
    assert (case.run / "report.html").is_file()
    assert (
        Report.model_validate(read_json(case.run / "report.json")).verdict.verdict
        == line["verdict"]
    )

    # What was measured is kept: no server starts again, and none is left.
    logs = written(case.run)
    assert logs and evaluate(**case.arguments)["tokens_per_s"] == line["tokens_per_s"]
    assert written(case.run) == logs
    assert children() <= before
