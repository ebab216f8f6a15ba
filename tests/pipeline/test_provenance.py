"""The commit of a checkout, which `--version` and provenance.json name."""

import subprocess
from pathlib import Path

import pytest

import outrider
from outrider.cli.main import _versions
from outrider.pipeline.provenance import commit_of


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one tracked file, and an ignored environment."""

    def git(*words: str) -> None:
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--quiet")
    (tmp_path / "tracked.py").write_text("x = 1\n")
    (tmp_path / ".gitignore").write_text(".venv\n")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    return tmp_path


def test_the_commit_is_that_of_the_file(checkout: Path) -> None:
    file = checkout / "tracked.py"
    commit = commit_of(file)
    assert commit is not None and len(commit) == 40
    file.write_text("x = 2\n")
    assert commit_of(file) == f"{commit}-dirty"


def test_a_package_inside_another_projects_repository_has_no_commit(checkout: Path) -> None:
    site = checkout / ".venv" / "site-packages"
    site.mkdir(parents=True)
    (site / "module.py").touch()
    assert commit_of(site / "module.py") is None


def test_outside_a_repository_there_is_no_commit(tmp_path: Path) -> None:
    (tmp_path / "module.py").touch()
    assert commit_of(tmp_path / "module.py") is None


def test_the_version_has_the_commit() -> None:
    first, *others = _versions().splitlines()
    commit = commit_of()  # None in a copy without .git
    named = f" (commit {commit})" if commit else ""
    assert first == f"outrider {outrider.__version__}{named}"
    assert any(line.startswith("torch ") for line in others)
