"""Embedding and head are packed at their first multiplication, or never."""

import weakref

import pytest
import torch

from outrider.serving.engine import Engine
from outrider.serving.vllm_hooks.cpu_vocabulary import pack_at_first_use
from outrider.serving.vllm_hooks.version import runs_on_cpu

pytestmark = pytest.mark.skipif(not runs_on_cpu(), reason="a GPU packs nothing")


def layer() -> torch.nn.Module:
    """A matrix over a vocabulary of 256, as vLLM's layers have it."""
    module = torch.nn.Module()
    weight = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    module.weight = torch.nn.Parameter(weight, requires_grad=False)
    return module


def test_the_first_product_packs_and_all_are_those_of_the_weights() -> None:
    from vllm.model_executor.layers.utils import cpu_unquantized_gemm

    own, x = layer(), torch.randn(3, 64).bfloat16()
    expected = torch.nn.functional.linear(x.float(), own.weight.float())
    pack_at_first_use(None, own)
    unpacked = own.cpu_linear
    for _ in range(2):
        found = cpu_unquantized_gemm(own, x, own.weight).float()
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-1)
        assert own.cpu_linear is not unpacked


def test_a_head_that_is_replaced_before_its_use_is_freed_at_once() -> None:
    own = layer()
    pack_at_first_use(None, own)
    gone = weakref.ref(own.weight)
    del own
    assert gone() is None


@pytest.mark.engine
def test_engines_pack_so(engine: Engine) -> None:
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    assert UnquantizedEmbeddingMethod.process_weights_after_loading is pack_at_first_use
