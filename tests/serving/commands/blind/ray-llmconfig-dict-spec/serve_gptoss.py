# serve run serve_gptoss:app
import os

from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app

DRAFT = os.environ.get("DRAFT_MODEL", "RedHatAI/gpt-oss-20b-speculator.eagle3")

llm_config = LLMConfig(
    model_loading_config=dict(
        model_id="gpt-oss-20b",
        model_source="openai/gpt-oss-20b",
    ),
    deployment_config=dict(
        autoscaling_config=dict(
            min_replicas=2,
            max_replicas=8,
            target_ongoing_requests=24,
        ),
        max_ongoing_requests=64,
    ),
    accelerator_type="H100",
    runtime_env=dict(env_vars={"VLLM_USE_V1": "1", "HF_HUB_ENABLE_HF_TRANSFER": "1"}),
    log_engine_metrics=True,
    engine_kwargs=dict(
        tensor_parallel_size=1,
        max_model_len=131_072,
        max_num_seqs=32,
        gpu_memory_utilization=0.92,
        reasoning_parser="openai_gptoss",
        enable_auto_tool_choice=True,
        tool_call_parser="openai",
        speculative_config={
            "method": "eagle3",
            "model": DRAFT,
            "num_speculative_tokens": 3,
        },
    ),
)

app = build_openai_app({"llm_configs": [llm_config]})

if __name__ == "__main__":
    serve.run(app, blocking=True)
