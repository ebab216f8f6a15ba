"""What cannot be replayed is judged on what the engine counted, and the report says what was not checked."""

import json

import pytest

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.eval import counted as module
from outrider.eval.bench.measure import Measured
from outrider.eval.config import EvalConfig
from outrider.eval.counted import delivered_acceptance, evaluate_counted
from outrider.eval.report.schema import Report
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator
from tests.eagle3_head import write_eagle3_head
from tests.eval.sample_results import EVALUATION, sample_blocks, sample_results
from tests.tiny import write_tiny_target


def counters(tokens, drafts=0, accepted=(0, 0)):
    return {
        "drafts": drafts,
        "draft_tokens": 2 * drafts,
        "accepted_tokens": sum(accepted),
        "accepted_per_position": list(accepted) if drafts else [],
        "generation_tokens": tokens,
    }


def simulated(script):
    """Tokens and counters of steps as a list of accepted drafts; None: a step without a draft, as n-gram lookup makes them."""
    drafted = [accepted for accepted in script if accepted is not None]
    tokens = 1 + sum(1 + (accepted or 0) for accepted in script)
    reached = [sum(accepted > position for accepted in drafted) for position in range(2)]
    return counters(tokens, len(drafted), reached)


def test_steps_without_a_draft_are_steps(tmp_path):
    script = [2, None, 0, None, 1, 2, None, None]
    mtp = Speculator("mtp", tmp_path)
    passes = [
        (f"{n}", {"base": (simulated([1, 0, 2]), 1), "custom": (simulated(script), 1)})
        for n in range(2)
    ]
    found = delivered_acceptance(
        passes, {"base": mtp, "custom": Speculator("ngram")}, 2, EVALUATION
    )
    assert (
        found["custom"]["acceptance_length"] == pytest.approx((8 + 5) / 8)
        and found["custom"]["steps"] == 16
    )
    assert found["base"]["acceptance_length"] == pytest.approx(6 / 3)
    assert found["ratio"]["value"] == pytest.approx(13 / 8 / 2)
    assert found["custom"]["cumulative"] == pytest.approx([3 / 8, 2 / 8])
    none = [("0", {"base": (simulated([1, 0, 2]), 1), "custom": (counters(9), 1)})]
    found = delivered_acceptance(none, {"base": mtp, "custom": Speculator("none")}, 2, EVALUATION)
    assert found["custom"]["acceptance_length"] == 1.0 and found["custom"]["cumulative"] == [
        0.0,
        0.0,
    ]


@pytest.fixture
def case(tmp_path):
    """All but servers and engine: six held-out requests, and what `serve` would have brought."""
    from datasets import Dataset

    target = write_tiny_target(tmp_path / "target")
    rows = [
        {
            "sequence_id": f"q{n}",
            "session": f"s{n}",
            "token_ids": [*range(2, 8 + n), 9, 9],
            "completion_start": 6 + n,
            "temperature": 0.6,
            "top_p": 0.95,
            "prompt_text": f"prompt {n}",
        }
        for n in range(6)
    ]
    Dataset.from_list(rows).save_to_disk(tmp_path / "sequences")
    return {
        "recipe": "a_test",
        "run_dir": tmp_path,
        "target": TargetConfig(model=str(target)),
        "base_dir": target,
        "sequences_dir": tmp_path / "sequences",
        "parts": {"validation": ["q0"], "heldout": [row["sequence_id"] for row in rows]},
        "depth": 3,
        "serving": ServingConfig(engine=EngineConfig(max_num_seqs=8)),
        "evaluation": EVALUATION,
        "out_dir": tmp_path / "out",
        "report_dir": tmp_path / "out",
        "log_dir": tmp_path,
    }


def served_as(kind, speed):
    """Of `serve`, with blocks in which custom is `speed` times as fast and accepts as its kind can."""

    def serve(context, servers, load, k, requests):
        assert context.speculators["custom"].kind == kind and k == 3
        blocks = sample_blocks(speed)
        for block in blocks:
            block["counters"] = dict(block["counters"])
            drafts, tokens = block["counters"]["drafts"], block["output_tokens"]
            own = {"draft_tokens": k * drafts, "generation_tokens": tokens}
            if block["variant"] == "custom" and kind == "none":
                own |= {"drafts": 0, "accepted_tokens": 0, "accepted_per_position": []}
            block["counters"] |= own
        sampled = {
            b["variant"]: {"counters": b["counters"], "token_ids": [[1, 2]] * 6} for b in blocks
        }
        return Measured({"eager": blocks}, {"sampled": sampled})

    return serve


@pytest.mark.parametrize(
    ("kind", "speed", "verdict", "reason"),
    [
        ("eagle3", 1.4, "ship", "counted by the engine; tokens/s"),
        ("eagle3", 0.8, "do not ship", "tokens/s, custom / base, eager"),
        ("ngram", 1.4, "ship", "counted by the engine"),
        ("none", 1.4, "do not ship", "acceptance length, custom / base: 0."),
    ],
)
def test_the_verdict_rests_on_counts_and_clock_and_names_what_is_missing(
    case, tmp_path, monkeypatch, kind, speed, verdict, reason
):
    monkeypatch.setattr(module, "serve", served_as(kind, speed))
    findings = {
        name: sample_results()["verification"][name]
        for name in ("requests", "greedy", "sampled_text")
    }
    monkeypatch.setattr(module, "examine_text", lambda *_, **__: findings)
    head = write_eagle3_head(tmp_path / "target", tmp_path / "head") if kind == "eagle3" else None
    line = evaluate_counted(**case, speculator=Speculator(kind, head))
    assert line["verdict"] == verdict and reason in line["reason"], line["reason"]
    assert "Not checked: exact replay, general traffic, replay against engine" in line["reason"]
    assert line["replay_vs_engine"] is None and line["acceptance_length"]["k"] == 3
    report = read_json(tmp_path / "out" / "report.json")
    Report.model_validate(report)
    assert report["replay"] is None and report["speculator"]["kind"] == kind
    words = {"eagle3": "an EAGLE-3 head", "ngram": "n-gram lookup", "none": "no speculation"}[kind]
    assert report["verdict"]["unchecked"]["exact replay"].startswith(f"no exact replay of {words}")
    page, text = ((tmp_path / "out" / name).read_text() for name in ("report.html", "report.md"))
    for shown in (page, text):
        assert f"no exact replay of {words}" in shown
    assert "Does exact replay agree" not in page and "acceptance, replay" not in text
    assert len(report["counted"]["custom"]["cumulative"]) == 3


def test_a_head_of_another_target_is_refused_before_anything_starts(case, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "serve", lambda *_: pytest.fail("started"))
    head = write_eagle3_head(tmp_path / "target", tmp_path / "head")
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps(config | {"vocab_size": 96}))
    with pytest.raises(OutriderError, match="a stale vocabulary"):
        evaluate_counted(**case, speculator=Speculator.named(head))


def test_a_task_that_cannot_be_found_is_told_before_anything_starts(case, monkeypatch):
    monkeypatch.setattr(module, "serve", lambda *_: pytest.fail("started"))
    evaluation = EvalConfig(task="posixpath:jion", concurrency=[1])
    with pytest.raises(OutriderError, match="no function jion"):
        evaluate_counted(**case | {"evaluation": evaluation}, speculator=Speculator("ngram"))


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("kind", ["eagle3", "ngram"])
def test_from_servers_to_verdict(case, nano_r1, tmp_path, kind):
    """Three servers, load, verification and capture in vLLM."""
    from datasets import Dataset
    from transformers import AutoTokenizer

    tokenizer, rows = AutoTokenizer.from_pretrained(nano_r1), []
    for n in range(6):
        asked = [{"role": "user", "content": f"I would like {n} lattes and a tea, please."}]
        text = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(text, add_special_tokens=False)
        row = {"token_ids": ids + ids[:4], "completion_start": len(ids), "prompt_text": text}
        rows.append(
            {"sequence_id": f"q{n}", "session": f"s{n}", "temperature": 0.6, "top_p": 0.95, **row}
        )
    Dataset.from_list(rows).save_to_disk(tmp_path / "asked")
    head = write_eagle3_head(nano_r1, tmp_path / "head") if kind == "eagle3" else None
    case |= {
        "target": TargetConfig(model=str(nano_r1)),
        "base_dir": nano_r1,
        "sequences_dir": tmp_path / "asked",
        "serving": ServingConfig(
            engine=EngineConfig(max_num_seqs=4, max_model_len=512, kv_cache_gb=0.25)
        ),
        "evaluation": EvalConfig(
            engine_modes=["eager"],
            concurrency=[1],
            requests=2,
            repeats=2,
            max_tokens=32,
            verification_requests=4,
            verification_max_tokens=32,
            bootstrap_samples=100,
        ),
    }
    line = evaluate_counted(**case, speculator=Speculator(kind, head))
    results = read_json(tmp_path / "out" / "results.json")
    assert (
        results["counted"]["base"]["acceptance_length"] > 1.3
        and results["counted"]["custom"]["drafts"] > 0
    )
    if kind == "eagle3":  # random weights: next to nothing is accepted, and it is slow besides
        assert (
            results["counted"]["custom"]["acceptance_length"] < 1.1
            and line["verdict"] == "do not ship"
        )
    for variant in ("base", "custom"):
        assert results["verification"]["greedy"][variant]["unexplained"] == 0
    assert (tmp_path / "out" / "report.html").is_file() and not (
        tmp_path / "out" / "verification_states"
    ).exists()
