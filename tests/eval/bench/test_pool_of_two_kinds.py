"""Servers and step times where base and custom cannot share an engine."""

from pathlib import Path

import pytest

from outrider.eval.bench.server_pool import Fleet
from outrider.eval.replay.draft_parity import by_engine
from outrider.eval.results.parts import SAME_K
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator
from tests.eagle3_head import write_eagle3_head
from tests.tiny import HIDDEN, write_tiny_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target and heads: two of one shape, one with other layers, one of another vocabulary."""
    made = tmp_path_factory.mktemp("kinds")
    target = write_tiny_target(made / "target")
    write_eagle3_head(target, made / "one", layers=[1, 2])
    write_eagle3_head(target, made / "two", seed=1, layers=[1, 2])
    write_eagle3_head(target, made / "other layers", layers=[1])
    write_eagle3_head(target, made / "normed", layers=[1, 2], norm_before_residual=True)
    return made


def fleet(folder: Path, base: str, custom: str) -> Fleet:
    named = {
        "base": Speculator.named(base if base in ("none", "ngram") else folder / base),
        "custom": Speculator.named(folder / custom),
    }
    plan = {"base": 2, "custom": 3, SAME_K: 3}
    return Fleet(TargetConfig(), ServingConfig(), named, plan, folder / "logs", True)


@pytest.mark.parametrize(
    ("base", "custom", "servers"),
    [
        ("one", "two", [["base", "custom", SAME_K], ["none"]]),
        ("target", "two", [["base", SAME_K], ["custom"], ["none"]]),
        ("other layers", "two", [["base", SAME_K], ["custom"], ["none"]]),
        ("normed", "two", [["base", SAME_K], ["custom"], ["none"]]),
        ("none", "two", [["base", SAME_K, "none"], ["custom"]]),
        ("ngram", "two", [["base", SAME_K], ["custom"], ["none"]]),
    ],
)
def test_one_engine_serves_both_only_if_it_can_load_both(
    folder: Path, base: str, custom: str, servers: list[list[str]]
) -> None:
    variants = ["base", "custom", SAME_K, "none"]
    assert sorted(map(sorted, fleet(folder, base, custom).engines(variants))) == sorted(
        map(sorted, servers)
    )


def test_parity_is_recorded_in_an_engine_for_each_shape(folder: Path) -> None:
    paths = {name: folder / name for name in ("one", "target", "two", "other layers")}
    groups = [list(group) for group in by_engine(paths)]
    assert groups == [["one", "two"], ["target"], ["other layers"]]


def test_a_speculator_names_the_states_that_it_reads(folder: Path) -> None:
    target = folder / "target"
    assert Speculator.named(folder / "one").features(target).names == ("layer_1", "layer_2")
    assert Speculator.named(folder / "other layers").features(target).names == ("layer_1",)
    assert Speculator.named(target).features(target).width == HIDDEN
    assert Speculator.named("ngram").features(target).streams == ()
