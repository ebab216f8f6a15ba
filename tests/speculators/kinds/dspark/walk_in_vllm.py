"""vLLM's own DSpark model and walk over given states of a block, on a CPU and without an engine.

    python -m tests.serving.vllm_hooks.v2_on_cpu \
        tests.speculators.kinds.dspark.walk_in_vllm TARGET HEAD states.safetensors out

`states` has us [N, K, H] and the tokens before the first drafts [N]. `out` gets the drafts and the
confidences.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file


def main() -> None:
    """One process for one head: vLLM's parallel groups stay until it ends."""
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import (
        initialize_model,
        process_weights_after_loading,
    )
    from vllm.v1.worker.gpu.spec_decode.dspark.speculator import DSparkSpeculator

    from outrider.serving.vllm_hooks.swap_extension import load_drafter_weights, required_parameters
    from outrider.speculators.kinds import trainable_kind_of

    _, target, head, states, out = sys.argv
    given = load_file(states)
    kind = trainable_kind_of(Path(head))
    us_NKH = given["us"]
    known_N = given["known"]
    count, depth, _ = us_NKH.shape
    settings = kind.vllm_settings(Path(head), depth, "greedy", None)
    arguments = EngineArgs(
        model=target,
        dtype="float32",
        max_model_len=64,
        enforce_eager=True,
        speculative_config=settings,
    )
    config = arguments.create_engine_config()
    drafter_config = config.speculative_config.draft_model_config
    with set_current_vllm_config(config):
        meeting = f"file://{out}.meeting"
        init_distributed_environment(1, 0, meeting, 0, "gloo")
        initialize_model_parallel()
        model = initialize_model(vllm_config=config, model_config=drafter_config)
        loaded = load_drafter_weights(model, kind.swap_tensors(Path(head)))
        process_weights_after_loading(model, drafter_config, torch.device("cpu"))
    assert required_parameters(model, kind) <= loaded, required_parameters(model, kind) - loaded
    walk = SimpleNamespace(
        model=model,
        num_speculative_steps=depth,
        sample_indices=torch.arange(count * depth),
        sample_idx_mapping=torch.arange(count).repeat_interleave(depth),
        sample_pos=torch.zeros(count * depth, dtype=torch.long),
        input_buffers=SimpleNamespace(input_ids=known_N),
        _anchor_idx=torch.arange(count),
        _draft_topk=None,
        _step_cols=torch.arange(depth),
        _maybe_predict_acceptance=lambda *_: None,
        draft_logits=None,
        use_confidence_head=True,
        draft_tokens=torch.zeros(count, depth, dtype=torch.long),
        draft_token_confidence_probs=torch.zeros(count, depth),
    )
    walk._sample_logits = lambda *given: DSparkSpeculator._sample_logits(walk, *given)
    with torch.no_grad():
        DSparkSpeculator._sample_sequential(walk, count, us_NKH.flatten(0, 1))
    drawn = {"drafts": walk.draft_tokens, "confidences": walk.draft_token_confidence_probs}
    save_file(drawn, out)


if __name__ == "__main__":
    main()
