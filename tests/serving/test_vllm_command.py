"""The command that starts a server."""

import subprocess
from pathlib import Path

from outrider.serving.vllm_command import COMMAND


def test_no_module_of_the_current_folder_is_imported(tmp_path: Path) -> None:
    """A bundle's folder may be the current one."""
    for name in ("march", "outrider"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('code of the bundle ran')")
    *python, option, module = COMMAND
    assert option == "-m"
    imports = (
        f"import importlib.util; assert not importlib.util.find_spec('march'); import {module}"
    )
    # Spawned engines and workers get Python's own options.
    spawned = (
        "import multiprocessing as m\n"
        "if __name__ == '__main__':\n"
        "    m.set_start_method('spawn'); p = m.Process(target=__import__, args=('march',))\n"
        "    p.start(); p.join(); assert p.exitcode == 1"
    )
    for code in (imports, spawned):
        done = subprocess.run(
            [*python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "code of the bundle ran" not in done.stderr
