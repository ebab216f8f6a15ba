"""What counts as a change, and how it is said."""

from outrider.recipes.pipeline.fingerprints import changes, path_identity, source_identity


def test_changes_name_the_leaf_and_both_values():
    before = {"recipe": {"training": {"epochs": 3, "seed": 0}}, "source": {"target": "a" * 64}}
    now = {"recipe": {"training": {"epochs": 5, "seed": 0}}, "source": {"target": "b" * 64}}
    assert changes(before, now) == ["recipe.training.epochs: 3 -> 5", "source.target"]
    assert changes(before, before) == []
    assert changes({"a": {}}, {"a": {"new": 1}}) == ["a.new: None -> 1"]


def test_identity_follows_content_and_names_but_not_time(tmp_path):
    (tmp_path / "a").write_text("x")
    first = path_identity(tmp_path)
    (tmp_path / "a").write_text("x")
    assert path_identity(tmp_path) == first
    (tmp_path / "a").rename(tmp_path / "b")
    renamed = path_identity(tmp_path)
    (tmp_path / "b").write_text("y")
    assert len({first, renamed, path_identity(tmp_path), path_identity(tmp_path / "none")}) == 4


def test_a_log_is_known_by_its_files_wherever_it_stands(tmp_path):
    (tmp_path / "a.jsonl").write_text("1")
    local, glob = source_identity(str(tmp_path)), source_identity(f"{tmp_path}/*.jsonl")
    url = source_identity(f"file://{tmp_path}")
    (tmp_path / "b.jsonl").write_text("2")
    assert source_identity(str(tmp_path)) != local
    assert source_identity(f"{tmp_path}/*.jsonl") != glob
    assert source_identity(f"file://{tmp_path}") != url
