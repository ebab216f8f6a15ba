"""Recipes from files and command lines, and the messages for mistakes in them."""

import pytest

from outrider.common.errors import OutriderError
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.shipped import shipped_heads, shipped_recipes


@pytest.fixture
def write(tmp_path):
    def write_recipe(text: str, name: str = "mine.yaml") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    return write_recipe


def test_every_shipped_recipe_loads():
    names = shipped_recipes()
    loaded = {name: load_recipe(name).recipe for name in names}
    assert len({recipe.name for recipe in loaded.values()}) == len(names), (
        "two recipes would share a run directory"
    )


def test_extends_merges_sections_and_replaces_values(write):
    write(
        "traffic: {path: a.jsonl, format: auto}\neval: {concurrency: [1, 2]}\n"
        "training: {epochs: 2, seed: 5}",
        "base.yaml",
    )
    recipe = load_recipe(
        write("extends: base.yaml\neval: {concurrency: [4]}\ntraining: {epochs: 9}")
    ).recipe
    assert recipe.name == "mine"
    assert (recipe.training.epochs, recipe.training.seed, recipe.eval.concurrency) == (9, 5, [4])


def test_effort_sets_what_a_recipe_leaves_out(write):
    path = write("traffic: {path: a}\neffort: trial\neval: {repeats: 7}")
    trial, thorough = (load_recipe(path, words).recipe for words in ([], ["effort=thorough"]))
    found = [(r.training.epochs, r.split.max_train_sequences) for r in (trial, thorough)]
    assert found == [(1, 3500), (2, 40_000)]
    assert (thorough.eval.measure, thorough.eval.repeats) == ("full", 7), "an explicit value wins"


def test_extends_in_a_circle_is_named(write):
    write("extends: mine.yaml", "base.yaml")
    with pytest.raises(
        OutriderError,
        match=r"base.yaml:1: extends: .*mine.yaml -> .*base.yaml -> .*mine.yaml never ends",
    ):
        load_recipe(write("extends: base.yaml"))


def test_relative_traffic_is_looked_for_beside_its_recipe_then_where_the_command_starts(
    tmp_path, monkeypatch, write
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.jsonl").touch()
    path = write(
        "traffic: {path: [here.jsonl, there.jsonl, 's3://bucket/logs']}", "recipes/mine.yaml"
    )
    (tmp_path / "recipes" / "here.jsonl").touch()
    expected = [
        str(tmp_path / "recipes" / "here.jsonl"),
        str(tmp_path / "there.jsonl"),
        "s3://bucket/logs",
    ]
    assert load_recipe(path).recipe.traffic.path == expected


def test_a_base_is_a_kind_a_shipped_head_or_a_directory_beside_the_recipe(
    tmp_path, monkeypatch, write
):
    monkeypatch.chdir(tmp_path)
    path = write("traffic: {path: a}\nspeculator: {base: heads/old}", "recipes/mine.yaml")
    for folder in ("recipes/heads/old", "heads/new", "mtp"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}")

    def base(*words):
        return load_recipe(path, list(words)).recipe.speculator.base

    assert base() == str(tmp_path / "recipes" / "heads" / "old")
    assert base("speculator.base=heads/new") == str(tmp_path / "heads" / "new")
    assert base("speculator.base=mtp") == "mtp"
    assert base("speculator.base=null") is None
    for name, directory in shipped_heads().items():
        assert base(f"speculator.base={name}") == str(directory)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "traffic: {path: a}\ntraining:\n  epochs: 2\n  lerning_rate: 1\n",
            r"mine.yaml:4: training.lerning_rate: no such key; did you mean "
            r"`training.learning_rate`\? `training` has: .*epochs",
        ),
        (
            "traffic: {path: a}\nepochs: 2\n",
            r"mine.yaml:2: epochs: no such key; did you mean `training.epochs`\?",
        ),
        (
            "traffic: {path: a}\ntraining:\n  epochs: many\n",
            r"mine.yaml:3: training.epochs = 'many': input should be a valid integer",
        ),
        ("traffic: {path: a}\neval:\n  k: x\n", r"mine.yaml:3: eval.k = 'x'"),
        ("training: {epochs: 2}\n", r"mine.yaml: traffic: must be given"),
        (
            "traffic: {path: a}\nprivacy: {retention: delete_all}\nreport: {samples: true}\n",
            r"report.samples = true puts customer text into the report, which "
            r"privacy.retention = delete_all does not",
        ),
        (
            "traffic: {path: a}\ntraining: {features: streamed}\n",
            r"training.features = streamed captures during training, on a Ray cluster; set "
            r"cluster.address",
        ),
        (
            "traffic: {path: a}\ntraining: {features: streamed}\ncluster: {address: local}\n"
            "privacy: {mode: surrogate, regenerate: true}\n",
            r"training.features = streamed trains on the logged responses, and privacy.regenerate",
        ),
        (
            "traffic: {path: a}\neval: {k: 9}\n",
            r"eval.k = 9 is above speculator.depth = 4",
        ),
        (
            "traffic: {path: a}\ntraining: {epochs: 1}\ntraining: {seed: 1}\n",
            r"mine.yaml:3: `training` is given twice",
        ),
        (
            "traffic: {path: a}\nserving:\n  draft_sample_method: greedy\n",
            r"mine.yaml:3: serving.draft_sample_method: no such key; did you mean "
            r"`speculator.draft_sample_method`\?",
        ),
        (
            "traffic: {path: a}\neval:\n  rates: [8]\n  scenarios:\n    long_in:\n"
            "      prompt_token: [9, null]\n",
            r"mine.yaml:6: eval\.scenarios\.long_in\.prompt_token: no such key; did you mean "
            r"`eval.scenarios.long_in.prompt_tokens`",
        ),
        (
            "traffic: {path: a}\neffort: big\n",
            r"effort = 'big': input should be 'trial', 'standard'",
        ),
        *(
            (
                f"traffic: {{path: a}}\nspeculator: {{kind: {kinds}}}\n",
                r"mine.yaml:2: speculator\.kind = .*list kinds, each once",
            )
            for kinds in (
                *("[]", "[mtp,mtp]", "[auto,mtp]", "[mtp,medusa]", "none", "[mtp,none]"),
                "[ngram,ngram]",
            )
        ),
        (
            "traffic: {path: a}\nspeculator: {base: nano_r1/none}\n",
            r"speculator\.base = .*nano_r1/none.: no such",
        ),
        ("traffic: {path: a\n", r"mine.yaml:2: not valid YAML"),
        ("- a\n", r"mine.yaml:1: a recipe is a mapping"),
        ("traffic: {path: a}\nname: ../up\n", r"mine.yaml:2: name = '../up'"),
        ("traffic: a\n", r"mine.yaml:1: traffic = 'a': input should be a valid dictionary"),
    ],
)
def test_a_mistake_is_reported_with_file_line_key_and_fix(write, text, message):
    with pytest.raises(OutriderError, match=message):
        load_recipe(write(text))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["training.epoch=3"],
            r"command line, training.epoch=3: training.epoch: no such key; did you mean "
            r"`training.epochs`",
        ),
        (["training.epochs"], r"training.epochs: not a key and its value; write section.key=value"),
        (["training.epochs.deep=1"], r"training.epochs is a value, not a section"),
        (["training.epochs=[1"], r"training.epochs=\[1: not a YAML value"),
    ],
)
def test_a_mistaken_override_is_reported(words, message):
    with pytest.raises(OutriderError, match=message):
        load_recipe("resume_screening", words)
