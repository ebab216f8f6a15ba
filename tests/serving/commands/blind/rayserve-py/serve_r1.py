import os

from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app

MODEL_SOURCE = os.environ.get("MODEL_SOURCE", "deepseek-ai/DeepSeek-R1")
NODES = int(os.getenv("NODES", "2"))

COMMON = dict(
    trust_remote_code=True,
    max_model_len=16384,
    gpu_memory_utilization=0.92,
    dtype="auto",
)

llm_config = LLMConfig(
    model_loading_config=dict(
        model_id="deepseek-r1",
        model_source=MODEL_SOURCE,
    ),
    deployment_config=dict(
        autoscaling_config=dict(min_replicas=1, max_replicas=1),
        max_ongoing_requests=256,
    ),
    accelerator_type="H100",
    runtime_env=dict(env_vars={"VLLM_USE_V1": "1", "NCCL_SOCKET_IFNAME": "bond0"}),
    engine_kwargs={
        **COMMON,
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": NODES,
        "max_model_len": 32768,
        "max_num_seqs": 64,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        # "speculative_config": {"method": "deepseek_mtp", "num_speculative_tokens": 1},  # not with PP
    },
)

app = build_openai_app({"llm_configs": [llm_config]})

if __name__ == "__main__":
    serve.run(app, blocking=True)
