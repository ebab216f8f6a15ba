"""The free answer against evaluation's replay of the same split, and what it reports apart."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset

from outrider.common.errors import OutriderError
from outrider.data.config import SplitConfig
from outrider.data.split.split import PARTS, divide_rows
from outrider.eval import free_answer as module
from outrider.eval.config import EvalConfig
from outrider.eval.context import EvaluationContext, EvaluationData, EvaluationFolders
from outrider.eval.free_answer import SHOWN, free_answer, lookup_advice
from outrider.eval.lookups import with_lookups
from outrider.eval.replay.replay import replay
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator
from outrider.speculators.kinds import installed_lookups

WORDS = [f"word{number}" for number in range(300)]


def log(count: int = 60, repeated: int = 0, times: bool = True) -> Dataset:
    """Exchanges that copy phrases; the prompts of the last `repeated` are earlier ones."""
    random = np.random.default_rng(5)
    phrases = [random.integers(0, 200, 9).tolist() for _ in range(12)]
    rows = []
    for number in range(count):
        words = random.permutation(WORDS)[:20]
        text = " ".join(words) if number < count - repeated else rows[number % 10]["prompt_text"]
        prompt = random.integers(200, 400, 12).tolist()
        chosen = random.integers(0, 12, 3).tolist() * 2
        response = [token for row in chosen for token in phrases[row]]
        rows.append(
            {
                "sequence_id": f"0-{number}",
                "session": f"s{number}",
                "session_kind": "conversation",
                "user": "",
                "tenant": "",
                "grammar": None,
                "time": 60.0 * number if times else None,
                "token_ids": prompt + response[: 1 if number == count - 1 else 50],
                "completion_start": len(prompt),
                "prompt_text": text,
            }
        )
    return Dataset.from_list(rows)


class Store:
    """The token ids of a feature store."""

    def __init__(self, table: Dataset) -> None:
        self.rows = {row["sequence_id"]: row for row in table}

    def tokens(self, sequence_id: str) -> torch.Tensor:
        return torch.tensor(self.rows[sequence_id]["token_ids"], dtype=torch.int32)

    def completion_start(self, sequence_id: str) -> int:
        return self.rows[sequence_id]["completion_start"]


def context_of(table: Dataset, target: Path, folder: Path) -> EvaluationContext:
    """The context of an evaluation of this log."""
    divided = divide_rows(table, SplitConfig())
    ids = table["sequence_id"][:]
    parts = {part: [ids[row] for row in divided.parts[part]] for part in PARTS}
    table.save_to_disk(folder / "sequences")
    none = Speculator("none")
    return EvaluationContext(
        recipe="a_test",
        target=TargetConfig(model=str(target)),
        serving=ServingConfig(),
        settings=EvalConfig(),
        depth=4,
        speculators={"base": none, "custom": none},
        data=EvaluationData(folder / "sequences", parts),
        folders=EvaluationFolders(run=folder, out=folder, report=folder, logs=folder),
    )


def evaluated(
    table: Dataset, target: Path, folder: Path
) -> Iterator[tuple[str, dict[str, float], list[float]]]:
    """Name, settings and tokens per step of every lookup, as an evaluation measures them."""
    context = context_of(table, target, folder)
    for name, speculator in with_lookups(context).lookups.items():
        rows = context.data.rows(context.data.parts["heldout"]).to_list()
        replayed = speculator.replay_argument(context.runner(speculator))
        sums = replay(replayed, target, Store(table), rows, depth=4)
        yield name, dict(speculator.settings), sums.acceptance_length()[:SHOWN]


def test_a_history_is_written_once_for_the_same_responses(tmp_path: Path, nano_r1: Path) -> None:
    pytest.importorskip("arctic_inference", reason="suffix lookup needs arctic-inference")
    context = context_of(log(), nano_r1, tmp_path)
    directory = with_lookups(context).lookups["suffix"].directory
    assert directory is not None
    history = directory / "history.npz"
    written = history.stat().st_mtime_ns
    again = with_lookups(context).lookups["suffix"]
    assert again.directory == directory and history.stat().st_mtime_ns == written
    parts = {**context.data.parts, "train": context.data.parts["train"][1:]}
    fewer = dataclasses.replace(context, data=dataclasses.replace(context.data, parts=parts))
    with_lookups(fewer)
    assert history.stat().st_mtime_ns != written
    history.unlink()
    with_lookups(fewer)
    assert history.is_file()


@pytest.mark.parametrize("repeated", [0, 6])
def test_new_prompts_have_the_figures_of_an_evaluation(
    tmp_path: Path, nano_r1: Path, repeated: int
) -> None:
    table = log(repeated=repeated)
    answer = free_answer(table, SplitConfig(), EngineConfig(), tmp_path / "free")
    measured = {
        name: (settings, lengths)
        for name, settings, lengths in evaluated(table, nano_r1, tmp_path / "evaluation")
    }
    assert [*answer["lookups"]] == [*measured] == installed_lookups()
    for name, (settings, lengths) in measured.items():
        lookup = answer["lookups"][name]
        assert lookup["settings"] == settings
        assert lookup["new"]["by_k"] == pytest.approx(lengths, abs=1e-4)
        assert max(lengths) > 1.2


def test_repeated_prompts_are_apart(tmp_path: Path) -> None:
    """The last response has one token, and so no step."""
    answer = free_answer(log(repeated=6), SplitConfig(), EngineConfig(), tmp_path / "free")
    (ngram, *_) = answer["lookups"].values()
    assert [ngram[name]["responses"] for name in ("new", "repeated", "all")] == [6, 5, 11]
    assert answer["repeated_share"] == pytest.approx(5 / 11)
    assert answer["replayed"] == {"responses": 11, "of": 12} and answer["order"] == "time"
    assert answer["history"] == {"responses": 42, "of": 42}
    assert json.loads(json.dumps(answer)) == answer and "word1" not in json.dumps(answer)
    without = free_answer(log(times=False), SplitConfig(), EngineConfig(), tmp_path / "without")
    assert without["order"] == "the log's order: it has no times"
    assert "repeated" not in without["lookups"]["ngram"]


def test_of_a_long_log_the_newest_responses_are_replayed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "HISTORY_TOKENS", 1000)
    monkeypatch.setattr(module, "REPLAYED_TOKENS", 201)
    answer = free_answer(log(), SplitConfig(), EngineConfig(), tmp_path / "free")
    assert answer["history"] == {"responses": 20, "of": 42}
    assert answer["replayed"] == {"responses": 4, "of": 12}
    newest = module.divided_texts(log(), SplitConfig())
    assert [text.sequence_id for text in newest.history][::19] == ["0-22", "0-41"]


def test_too_few_sessions_are_named(tmp_path: Path) -> None:
    with pytest.raises(OutriderError, match="2 sessions"):
        free_answer(log(count=2), SplitConfig(), EngineConfig(), tmp_path / "free")


def test_the_advice_follows_the_longest_steps() -> None:
    def lookup(name: str, length: float) -> dict[str, Any]:
        best = {"k": 5, "tokens_per_step": length, "ci95": [length - 0.5, length + 0.5]}
        searches = {"searches_history": name == "suffix"}
        return {"in_words": f"{name} lookup", "all": {"best": best}, **searches}

    lookups = {"ngram": lookup("n-gram", 1.4), "suffix": lookup("suffix", 2.5)}
    answer = {"lookups": lookups, "tenants": 1}
    assert lookup_advice(answer).startswith(
        "suffix lookup delivers 2.50 [2.00, 3.00] tokens per step"
    )
    assert "without training: speculator.kind=suffix measures" in lookup_advice(answer)
    shared = lookup_advice({**answer, "tenants": 2})
    assert "share a history: speculator.kind=suffix lookup.shared=true measures" in shared
    assert "train none before" in lookup_advice(answer)
    of_both = lookup_advice({**answer, "lookups": {"suffix": lookup("suffix", 1.9)}})
    assert "a trained head delivered no more; speculator.kind=auto" in of_both
    assert "train a head" in lookup_advice({"lookups": {"ngram": lookup("n-gram", 1.29)}})
