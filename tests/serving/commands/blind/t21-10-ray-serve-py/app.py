"""Ray Serve app: `serve run app:app`."""
import os

from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app

MODEL = "Qwen/Qwen3-32B"
QUANT = "-FP8"
TP = 2

ENGINE = dict(
    tensor_parallel_size=TP,
    max_model_len=40960,
    max_num_seqs=96,
    gpu_memory_utilization=0.9,
    enable_chunked_prefill=True,
    reasoning_parser="qwen3",
)

SPECULATION = {
    "method": "eagle3",
    "model": "RedHatAI/Qwen3-32B-speculator.eagle3",
    "num_speculative_tokens": 3,
}

llm_config = LLMConfig(
    model_loading_config=dict(
        model_id="qwen3-32b",                # the name clients use
        model_source=f"{MODEL}{QUANT}",
    ),
    accelerator_type="H100",
    deployment_config=dict(
        autoscaling_config=dict(min_replicas=1, max_replicas=4, target_ongoing_requests=64),
    ),
    engine_kwargs={**ENGINE, "max_num_seqs": 128, "speculative_config": SPECULATION},
    runtime_env=dict(env_vars={"VLLM_LOGGING_LEVEL": "WARNING", "HF_TOKEN": os.environ.get("HF_TOKEN", "")}),
)

app = build_openai_app({"llm_configs": [llm_config]})

if __name__ == "__main__":
    serve.run(app, blocking=True)
