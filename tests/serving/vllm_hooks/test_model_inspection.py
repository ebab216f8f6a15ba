"""Model classes are inspected in this process on a CPU, with the same result."""

import pytest

from outrider.serving.engine import Engine
from outrider.serving.vllm_hooks import model_inspection
from outrider.serving.vllm_hooks.version import runs_on_cpu

pytestmark = pytest.mark.skipif(not runs_on_cpu(), reason="a CPU build has no CUDA to initialize")


@pytest.mark.engine
def test_engines_inspect_in_their_process(engine: Engine) -> None:
    from vllm.model_executor.models import registry

    assert registry._run_in_subprocess is model_inspection.here


@pytest.mark.slow
def test_the_result_is_that_of_vllms_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.model_executor.models import registry

    model = registry.ModelRegistry.models["DeepSeekMTPModel"]
    monkeypatch.setattr(model.__class__, "_load_modelinfo_from_cache", lambda *_: None)
    theirs = model.inspect_model_cls()
    monkeypatch.setattr(registry, "_run_in_subprocess", model_inspection.here)
    assert model.inspect_model_cls() == theirs
