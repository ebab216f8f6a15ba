"""The installed vLLM has every private name, signature and call order that Outrider uses.

Read from vLLM's source, so the check is the same everywhere; it is first because everything else
rests on it.
"""

from pathlib import Path

from outrider.recipes.gpu_check.check import CheckFailed, Figures


def on_gpu(folder: Path) -> Figures:
    """Model runners V1 and V2."""
    from outrider.serving.vllm_hooks.contract import CONTRACT, check_contract

    if failures := check_contract():
        raise CheckFailed(f"{len(failures)} names differ: {'; '.join(failures)}")
    return {"names": sum(len(checks) for checks in CONTRACT.values())}


on_cpu = on_gpu
