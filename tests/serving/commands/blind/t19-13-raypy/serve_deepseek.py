# SPDX-License-Identifier: Apache-2.0
"""
DeepSeek R1 on two 8xH100 nodes with Ray Serve LLM.

Start the cluster first:
    head:    ray start --head --port=6379
    worker:  ray start --address=<head>:6379
then on the head: python3 serve_deepseek.py
"""
import os

from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app

NUM_NODES = 2
GPUS_PER_NODE = 8
USE_LOCAL = False
LOCAL_PATH = "/mnt/cluster_storage/DeepSeek-R1"

llm_config = LLMConfig(
    model_loading_config={
        "model_id": "deepseek-r1",
        # Pre-downloading is recommended, the model is large.
        # "model_source": "/mnt/cluster_storage/DeepSeek-R1",
        "model_source": "deepseek-ai/DeepSeek-R1-0528",
    },
    deployment_config={
        "autoscaling_config": {"min_replicas": 1, "max_replicas": 1},
        "max_ongoing_requests": 64,
    },
    accelerator_type="H100",
    runtime_env={
        "env_vars": {
            "VLLM_LOGGING_LEVEL": "INFO",
            "NCCL_SOCKET_IFNAME": "eth0",
            # "HF_TOKEN": os.environ.get("HF_TOKEN", ""),
        }
    },
    engine_kwargs={
        "tensor_parallel_size": GPUS_PER_NODE,
        "pipeline_parallel_size": NUM_NODES,
        "gpu_memory_utilization": 0.92,
        "dtype": "auto",
        "max_num_seqs": 40,
        "max_model_len": 16384,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "trust_remote_code": True,
        "reasoning_parser": "deepseek_r1",
    },
)

app = build_openai_app({"llm_configs": [llm_config]})

if __name__ == "__main__":
    serve.run(app, blocking=True)
