"""Engine processes are forked where the environment asks for it, and only there."""

import pytest

from outrider.serving.engine import Engine
from outrider.serving.vllm_hooks import process_start
from outrider.serving.vllm_hooks.plugin import register
from outrider.serving.vllm_hooks.version import runs_on_cpu


@pytest.mark.engine
@pytest.mark.skipif(not runs_on_cpu(), reason="tests fork engines on a CPU only")
def test_the_tests_fork_their_engines(engine: Engine) -> None:
    from vllm.v1.engine import utils

    assert utils.get_mp_context().get_start_method() == "fork"


@pytest.mark.parametrize(("value", "forks"), [(None, False), ("0", False), ("1", True)])
def test_engines_are_forked_on_request_only(
    value: str | None, forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[bool] = []
    monkeypatch.setattr(process_start, "install", lambda: installed.append(True))
    monkeypatch.delenv(process_start.FORK, raising=False)
    if value is not None:
        monkeypatch.setenv(process_start.FORK, value)
    register()
    assert bool(installed) == forks
