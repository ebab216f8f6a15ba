"""The Dockerfile's RUN lines, executed in order in an empty environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_rooms import ROOT
from tools.dockerfile import prepared, run_lines

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_lines_of_a_stage_are_those_of_the_stages_before_it_too() -> None:
    server = run_lines(DOCKERFILE, "server")
    train = run_lines(DOCKERFILE, "train")
    assert train[: len(server)] == server and len(train) > len(server) == 2
    assert run_lines("FROM a AS one\nRUN b \\\n  c\nFROM one AS two\nRUN d\n", "one") == ["b    c"]
    with pytest.raises(SystemExit, match="other: no such stage; the Dockerfile has server, train"):
        run_lines(DOCKERFILE, "other")


@pytest.mark.slow
def test_a_servers_image_has_the_package_from_a_wheel_with_its_data(tmp_path: Path) -> None:
    commands = prepared(tmp_path)
    environment = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}"}

    def run(command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env=environment,
            text=True,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    for line in run_lines(DOCKERFILE, "server"):
        run(line.replace("/opt/", f"{tmp_path}/opt/"))
    where = run("python3 -c 'import outrider; print(outrider.__file__)'")
    assert where.startswith(str(tmp_path / "env")) and "site-packages/outrider/" in where
    # Recipes, nano R1 and its traffic come with the package.
    run("outrider train resume_screening --dry-run")
    assert (tmp_path / "runs" / "resume_screening" / "recipe.resolved.yaml").is_file()
    assert sys.prefix not in where
