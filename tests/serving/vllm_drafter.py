"""vLLM's own drafter on a CPU, without an engine, each in a process that `forked` ends.

`draft` drafts token by token. It replaces only the attention's cache, by one that keeps keys and
values in a list.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_arguments import engine_arguments, engine_environment
from outrider.serving.vllm_hooks.swap_extension import required_parameters
from outrider.speculators.kinds import trainable_kind_of


class ListedCache(torch.nn.Module):
    """Attention of one token at a time over those before, [1, A*D] each."""

    def __init__(self, attention: Any):
        super().__init__()
        self.heads = attention.num_heads
        self.kv_heads = attention.num_kv_heads
        self.scale = attention.scaling
        self.seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.seen.append((key, value))
        key_TGD, value_TGD = (
            torch.cat(each).unflatten(-1, (self.kv_heads, -1))
            for each in zip(*self.seen, strict=True)
        )
        query_GAD = query.view(self.kv_heads, self.heads // self.kv_heads, -1)
        score_GAT = torch.einsum("gad,tgd->gat", query_GAD, key_TGD) * self.scale
        return torch.einsum("gat,tgd->gad", score_GAT.softmax(-1), value_TGD).view(1, -1)


def forked(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function that changes vLLM's classes and groups.

    The process is forked, because vLLM takes 8 s to import.
    """
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


@contextlib.contextmanager
def loaded_drafter(
    target: Path, speculator: Path, engine: EngineConfig, out: Path
) -> Iterator[tuple[Any, Any, set[str]]]:
    """vLLM's configuration, its drafter with the weights of the speculator, and their names."""
    os.environ.update(engine_environment(engine))
    drafting = Drafting(Speculator.from_name(speculator), 2)
    arguments = engine_arguments(TargetConfig(model=str(target)), engine, drafting)

    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    config = EngineArgs(**arguments, skip_tokenizer_init=True).create_engine_config()
    model_config = config.speculative_config.draft_model_config
    with set_current_vllm_config(config), torch.no_grad():
        init_distributed_environment(1, 0, f"file://{out}.rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        with set_default_torch_dtype(model_config.dtype):
            drafter = initialize_model(vllm_config=config, model_config=model_config, prefix="")
        kind = trainable_kind_of(speculator)
        loaded = drafter.load_weights(kind.swap_tensors(speculator))
        assert required_parameters(drafter, kind) <= loaded, "vLLM needs more than was published"
        yield config, drafter, loaded


def draft(
    target: Path,
    speculator: Path,
    token_ids: list[int],
    embedding_VH: Tensor,
    hidden_TH: Tensor,
    depth: int,
    out: Path,
) -> None:
    """Writes `u.DEPTH.ANCHOR`, the normed states of every chain; call it with `forked`.

    Chains read the target's embedding of the given tokens, from the states `hidden_TH`.
    """
    engine = EngineConfig(max_model_len=256, dtype="float32")
    with loaded_drafter(target, speculator, engine, out) as (config, drafter, _):
        from vllm.forward_context import set_forward_context
        from vllm.model_executor.model_loader.utils import process_weights_after_loading

        model_config = config.speculative_config.draft_model_config
        process_weights_after_loading(drafter, model_config, torch.device("cpu"))
        [layer] = drafter.model.layers.values()
        attention = layer.mtp_block.self_attn
        attention.attn = cache = ListedCache(attention)

        def step(token: int, state: Tensor, position: int) -> tuple[Tensor, Tensor]:
            token_1 = torch.tensor([token])
            position_1 = torch.tensor([position])
            with set_forward_context(None, config, num_tokens=1):
                found = drafter(token_1, position_1, state, inputs_embeds=embedding_VH[token_1])
            # llm_base_proposer.py: a tuple has the state for the head and the state that is fed.
            last, fed = found if isinstance(found, tuple) else (found, found)
            return fed, layer.shared_head(last)[0]

        states = {}
        for i in range(len(token_ids) - 2):
            fed, states[f"u.0.{i}"] = step(token_ids[i + 1], hidden_TH[i : i + 1], i)
            for s in range(1, min(depth, len(token_ids) - 2 - i)):
                fed, states[f"u.{s}.{i}"] = step(token_ids[i + 1 + s], fed, i + s)
            del cache.seen[i + 1 :]
    save_file({name: state.contiguous() for name, state in states.items()}, out)
