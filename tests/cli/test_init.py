"""`outrider init`: the recipe follows from the log and the target's config.json alone."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

import outrider
from outrider.common.errors import OutriderError, UsageError
from outrider.pipeline.new_recipe import write_recipe
from outrider.pipeline.plan.training_cost import price
from outrider.pipeline.provenance import Gpu
from tests.cli.workplace import write_workplace
from tests.data.logs import pair, screenings, write_log
from tests.published_configs import PUBLISHED
from tests.tiny_decoders import TOKENIZER


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, nano_r1) -> Path:
    return write_workplace(tmp_path_factory.mktemp("workplace"), nano_r1, {})


@pytest.fixture(scope="module")
def short_log(tmp_path_factory, nano_r1) -> str:
    """A log of a few screenings: what lookup would deliver on it takes most of a test's time."""
    return str(write_workplace(tmp_path_factory.mktemp("short"), nano_r1, {}, 12) / "log.jsonl")


def write_published(name: str, folder: Path, tokenizer_of: Path) -> Path:
    """A target's config.json and nano R1's tokenizer; no weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PUBLISHED[name][0]))
    for file in TOKENIZER:
        shutil.copyfile(tokenizer_of / file, folder / file)
    return folder


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_supported_target_gets_a_recipe(
    name: str, short_log: str, tmp_path: Path, nano_r1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_published(name, tmp_path / "target", nano_r1)
    recipe = tmp_path / "mine.yaml"
    expected = PUBLISHED[name][1]
    if isinstance(expected, str):
        with pytest.raises(OutriderError, match=expected) as refused:
            write_recipe(short_log, str(target), recipe)
        text = str(refused.value).replace(str(target), "target")
        assert not recipe.exists() and "\n" not in text and len(text) < 500
        return
    path, found = write_recipe(short_log, str(target), recipe)
    written = yaml.safe_load(path.read_text())
    speculator = written["speculator"]
    assert (written["extends"], speculator["kind"], speculator["base"]) == expected
    assert found["speculator"].startswith(f"speculator.kind = {expected[1]}: ")
    # The next command, and the same decisions on a machine with a GPU build of vLLM.
    opened = outrider.open(path, runs=tmp_path / "runs", dry_run=True)
    cost = price(opened.directory, opened.recipe)
    assert cost["parameters"]["trained"] > 0 and cost["target"]["parameters"] > 1e8
    for module in ("runner", "vllm_arguments"):
        monkeypatch.setattr(f"outrider.serving.{module}.runs_on_cpu", lambda: False)
    outrider.open(path, runs=tmp_path / "runs", dry_run=True)


def test_one_reason_and_one_fix_where_no_kind_can_be_trained(
    workplace: Path, tmp_path: Path, nano_r1: Path
) -> None:
    """GLM-4.6-FP8: its states are not returned, and its MTP layer's format is not read."""
    target = write_published("GLM-4.6-FP8", tmp_path / "target", nano_r1)
    words = (f"target.model={target}", f"traffic.path={workplace / 'log.jsonl'}")
    with pytest.raises(OutriderError) as planned:
        outrider.open(
            "template", *words, "speculator.kind=auto", runs=tmp_path / "runs", dry_run=True
        )
    with pytest.raises(OutriderError) as begun:
        write_recipe(str(workplace / "log.jsonl"), str(target), tmp_path / "mine.yaml")
    for refused in (planned, begun):
        text = str(refused.value).replace(str(target), "target")
        assert len(text) < 400 and text.count("config.json") == 1
        assert text.endswith("point target.model at such a checkpoint of the same model")


@pytest.mark.parametrize("name", ["R1", "R1-AWQ", "Kimi-K2", "R1-Distill-Llama-70B"])
def test_a_recipe_does_not_depend_on_the_machine(
    name: str, workplace: Path, tmp_path: Path, nano_r1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_published(name, tmp_path / "target", nano_r1)
    words = str(workplace / "log.jsonl"), str(target), tmp_path / "mine.yaml"
    here = write_recipe(*words)[0].read_text()
    words[2].unlink()
    for module in ("runner", "vllm_arguments"):
        monkeypatch.setattr(f"outrider.serving.{module}.runs_on_cpu", lambda: False)
    monkeypatch.setattr(
        "outrider.pipeline.plan.training_cost.gpus", lambda: [Gpu("L4", 23034, "580")]
    )
    assert write_recipe(*words)[0].read_text() == here


@pytest.mark.parametrize(
    ("times", "concurrency", "seats"),
    [
        # Forty requests of 3 s: one at a time, two to four at a time, none with a time.
        ([1_700_000_000 + 60 * index for index in range(40)], [1], 8),
        ([1_700_000_000 + index for index in range(40)], [3], 8),
        ([1_700_000_000 + 60 * (index // 20) for index in range(40)], [20], 64),
        ([None] * 40, [1], None),
    ],
)
def test_concurrency_is_the_log_s(tmp_path: Path, nano_r1: Path, times, concurrency, seats) -> None:
    rows = [
        pair(*each, request__metadata__session_id=f"s-{index}", timestamp=time, latency_ms=3000)
        for index, (each, time) in enumerate(zip(screenings(40), times, strict=True))
    ]
    for row in rows:
        row["response"].pop("created", None)
    log = write_log(tmp_path / "log.jsonl", rows)
    path, _ = write_recipe(str(log), str(nano_r1), tmp_path / "mine.yaml")
    written = yaml.safe_load(path.read_text())
    assert written["eval"]["concurrency"] == concurrency
    assert written["serving"]["engine"].get("max_num_seqs") == seats


def test_keys_of_the_logs_are_used_and_written(tmp_path: Path, nano_r1: Path) -> None:
    """Otherwise advice about traffic could not be followed before there is a recipe."""
    rows = []
    for number, (messages, reasoning, answer) in enumerate(screenings(40)):
        row = pair(messages, reasoning + "\n", "\n\n" + answer, request__metadata=None)
        rows.append({**row, "app": {"thread": f"t{number // 2}", "author": f"a{number % 7}"}})
    log = write_log(tmp_path / "log.jsonl", rows)
    words = ("traffic.fields.session=app.thread", "traffic.fields.user=app.author")
    target = (str(log), str(nano_r1))
    path, facts = write_recipe(*target, tmp_path / "mine.yaml", traffic=words)
    assert facts["sessions"]["distinct"] == 20 and facts["users"]["distinct"] == 7
    written = yaml.safe_load(path.read_text())["traffic"]
    assert written["fields"] == {"session": "app.thread", "user": "app.author"}
    assert f"init {log} {' '.join(words)} --target" in path.read_text()
    again = outrider.init(*target, tmp_path / "api.yaml", traffic={"fields": written["fields"]})
    assert yaml.safe_load(again.read_text())["traffic"] == written
    for wrong in ("training.epochs=3", "traffic.path=other"):
        with pytest.raises(UsageError, match="init takes keys of the logs"):
            write_recipe(*target, tmp_path / "wrong.yaml", traffic=[wrong])
