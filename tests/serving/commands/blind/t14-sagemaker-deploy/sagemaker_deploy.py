import json

import sagemaker
from sagemaker.model import Model

role = sagemaker.get_execution_role()
image = "763104351884.dkr.ecr.us-west-2.amazonaws.com/vllm:server-sagemaker-cuda-v1"

env = {
    "SM_VLLM_MODEL": "Qwen/Qwen3-14B-FP8",
    "SM_VLLM_TENSOR_PARALLEL_SIZE": "4",
    "SM_VLLM_MAX_MODEL_LEN": "16384",
    "SM_VLLM_MAX_NUM_SEQS": "64",
    "SM_VLLM_ENABLE_PREFIX_CACHING": "false",
    "SM_VLLM_ENFORCE_EAGER": "true",
    "SM_VLLM_REASONING_PARSER": "qwen3",
    "SM_VLLM_SPECULATIVE_CONFIG": json.dumps(
        {"method": "eagle3", "model": "AngelSlim/Qwen3-14B_eagle3", "num_speculative_tokens": 2}
    ),
}

model = Model(image_uri=image, role=role, env=env, name="qwen3-14b-fp8")
model.deploy(
    instance_type="ml.g6.12xlarge",
    initial_instance_count=2,
    endpoint_name="qwen3-14b",
    inference_ami_version="al2-ami-sagemaker-inference-gpu-3-1",
    container_startup_health_check_timeout=1200,
)
