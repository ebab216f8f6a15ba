"""Where the plugin acts, and the replacement of vLLM's faulty CPU kernel against a literal loop."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from outrider.serving.admin.live_flags import ADMIN
from outrider.serving.hooked import HOOKS
from outrider.serving.vllm_hooks.plugin import expand, release

ROOT = Path(__file__).resolve().parents[3]
ELSEWHERE = """
import sys

before = set(sys.modules)
from outrider.serving.vllm_hooks.plugin import register

register()
heavy = {"torch", "numpy", "pydantic", "vllm", "transformers"}
found = heavy & {name.split(".")[0] for name in set(sys.modules) - before}
assert not found, found
"""

TRAINING = [
    *("cyclopts", "datasets", "datasketch", "deepspeed", "ray"),
    *("rich", "scipy", "vl_convert", "wandb"),
]
SERVER = """
import sys
from importlib.abc import MetaPathFinder

import vllm.config  # vLLM itself may use some of them


class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


for name in [name for name in sys.modules if name.partition(".")[0] in sys.argv[1:]]:
    del sys.modules[name]
sys.meta_path.insert(0, Missing())
import outrider.serving.vllm_hooks.admin_route
import outrider.serving.vllm_hooks.plugin
import outrider.serving.vllm_hooks.swap_extension
"""

EVERYTHING = """
import importlib
import logging
import pkgutil
import sys

logging.getLogger("outrider.vllm").addFilter(lambda record: sys.exit(record.getMessage()))
from outrider.serving import vllm_hooks
from outrider.serving.vllm_hooks.plugin import register

register()
for module in pkgutil.iter_modules(vllm_hooks.__path__):
    importlib.import_module(f"{vllm_hooks.__name__}.{module.name}")
"""


@pytest.mark.parametrize(
    ("script", "values"),
    [
        pytest.param(EVERYTHING, {HOOKS: "1", ADMIN: "unix:/nowhere"}, id="all hooks installed"),
        pytest.param(SERVER, {}, id="a server without what training needs"),
        pytest.param(ELSEWHERE, {}, id="nothing imported in a server of somebody else"),
    ],
)
def test_what_the_plugin_imports_and_installs(script: str, values: dict[str, str]) -> None:
    others = {k: v for k, v in os.environ.items() if not k.startswith("OUTRIDER_")}
    command = [sys.executable, "-c", script, *TRAINING]
    done = subprocess.run(command, env=others | values, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr


def test_a_server_is_installed_without_what_training_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = " ".join(project["dependencies"]).replace("-", "_")
    assert [name for name in TRAINING if name in installed] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_each_request_s_value_is_repeated_for_each_of_its_drafts(dtype: torch.dtype) -> None:
    drafts = [3, 0, 1, 2]
    values = torch.tensor([2, 5, 0, 7]).to(dtype)
    expected = [
        1 if value == 0 else value
        for value, n in zip(values.tolist(), drafts, strict=True)
        for _ in range(n)
    ]
    output = torch.full((sum(drafts),), -1).to(dtype)
    expand(
        output=output,
        input_val=values,
        cu_num_tokens=torch.tensor(drafts).cumsum(0).to(torch.int32),
        replace_from=0,
        replace_to=1,
    )
    assert output.tolist() == expected


def test_a_discarded_weight_is_freed_while_a_fake_kernel_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM's own `__del__` aborts the process here."""
    from vllm import _custom_ops

    monkeypatch.setattr(_custom_ops.CPUDNNLGEMMHandler, "__del__", release)
    handler = _custom_ops.create_onednn_mm(torch.randn(8, 8).t())
    pointer = handler.handler_tensor.item()
    released = list[int]()
    handler.dtor = released.append
    with FakeTensorMode():
        disabled = torch._C._DisableTorchDispatch()
        with torch._C._PreserveDispatchKeyGuard():
            torch._C._set_meta_in_tls_dispatch_include(True)
            del handler
        del disabled
    assert released == [pointer]
