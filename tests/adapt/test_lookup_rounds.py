"""Rounds of a lookup: new responses join the history in use, and the gate replays both."""

import json
import random

import numpy as np
import pytest

from outrider.adapt.gate import judge_round, measure_window, write_bundle
from outrider.common.files import read_json, write_json
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.adapt import ADAPT_ROUND, ADAPT_WINDOW, PLAN
from outrider.serving.bundle.bundle import export_bundle
from outrider.serving.config import EngineConfig
from outrider.serving.speculator import Drafting, Speculator
from outrider.speculators.kinds.suffix import FACTOR, SuffixLookup
from outrider.speculators.lookup_history import HISTORY_FILE, EarlierResponse, read_history

K = 6
SENTENCES = [
    "The order was shipped on Monday and arrives within three days at the address you gave.",
    "Please return the shoes in their box; the refund reaches your account in a week.",
    "The invoice lists two items, and the second one was charged at the old price.",
    "Your card was declined because it expired; add another one under payment methods.",
]


def write_log(path, first, seed):
    """Sixty chats of as many sessions, whose answers repeat sentences."""
    chosen = random.Random(seed)
    rows = []
    for number in range(first, first + 60):
        question = f"Question {number}: " + " ".join(chosen.choices("abcdefgh", k=12))
        answer = " ".join(chosen.choices(SENTENCES, k=3))
        rows.append(
            {
                "request": {
                    "messages": [{"role": "user", "content": question}],
                    "metadata": {"session_id": f"s{number}"},
                },
                "response": {
                    "choices": [
                        {
                            "message": {
                                "role": "assistant",
                                "reasoning_content": "I answer politely.",
                                "content": answer,
                            },
                            "finish_reason": "stop",
                        }
                    ]
                },
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_new_traffic_becomes_a_history_that_the_gate_measured(tmp_path, nano_r1):
    pytest.importorskip("arctic_inference", reason="suffix lookup needs arctic-inference")
    unrelated = [EarlierResponse(np.arange(9, dtype=np.int32), "first")]
    made = SuffixLookup().prepare(unrelated, tmp_path / "made", max_gb=1.0, shared=True)
    in_use = tmp_path / "in_use"
    recipe = load_recipe(
        "resume_screening",
        [f"target.model={nano_r1}", "speculator.kind=suffix", f"speculator.base={in_use}"],
    ).recipe
    drafting = Drafting(Speculator("suffix", made, {FACTOR: 2.0}), K)
    export_bundle(drafting, recipe.target, EngineConfig(), evidence={}, out_dir=in_use)
    windows = []
    for number in (1, 2):
        run = RunDirectory(tmp_path / f"w{number}")
        log = tmp_path / f"{number}.jsonl"
        write_log(log, 100 * number, seed=number)
        traffic = recipe.traffic.model_copy(update={"path": [str(log)], "general": None})
        result = ADAPT_WINDOW.work(run, recipe.model_copy(update={"traffic": traffic}), {})
        assert result["sequences"] == 60
        windows.append(run)
    before, _ = measure_window(windows[1], in_use, None, recipe, K)

    made_round = RunDirectory(tmp_path / "r1")
    plan = {"number": 1, "newer": [str(windows[0].root)], "older": []}
    made_round.root.mkdir()
    write_json(made_round.root / PLAN, plan)
    ADAPT_ROUND.work(made_round, recipe, {"parity": True})
    verdict = judge_round(
        made_round, windows=[windows[1]], older=[], serving_dir=in_use, recipe=recipe, k=K
    )
    assert verdict.base.value == pytest.approx(before.value)
    assert verdict.ships and verdict.ratio.low > 1.2
    schedule = [(1, 4, K), (5, 5, 0)]
    write_bundle(made_round, recipe, verdict, schedule)
    history = read_history(made_round.bundle / HISTORY_FILE)
    assert history.responses == 61
    manifest = read_json(made_round.bundle / "bundle.json")
    assert manifest["settings"] == {FACTOR: 2.0} and manifest["num_speculative_tokens"] == K
    assert manifest["num_speculative_tokens_per_batch_size"] == [*map(list, schedule)]
    assert manifest["evidence"]["acceptance_length"]["custom"] == verdict.custom.value
