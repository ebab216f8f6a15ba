import json
import os

import boto3

REGION = "us-west-2"
ACCOUNT = "763104351884"
IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/vllm:0.20.2-gpu-py312-cu130-ubuntu22.04-sagemaker"
NAME = "r1-distill-llama-8b-prod"

env = {
    "SM_VLLM_MODEL": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    "SM_VLLM_TENSOR_PARALLEL_SIZE": "1",
    "SM_VLLM_MAX_MODEL_LEN": "40960",
    "SM_VLLM_MAX_NUM_SEQS": "64",
    "SM_VLLM_GPU_MEMORY_UTILIZATION": "0.92",
    "SM_VLLM_ENFORCE_EAGER": "false",
    "SM_VLLM_ENABLE_CHUNKED_PREFILL": "true",
    "SM_VLLM_KV_CACHE_DTYPE": "fp8",
    "SM_VLLM_SPECULATIVE_CONFIG": json.dumps(
        {
            "method": "eagle3",
            "model": "yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B",
            "num_speculative_tokens": 4,
        }
    ),
    "VLLM_ATTENTION_BACKEND": "FLASHINFER",
    "HF_TOKEN": os.environ["HF_TOKEN"],
}

sm = boto3.client("sagemaker", region_name=REGION)
sm.create_model(
    ModelName=NAME,
    PrimaryContainer={"Image": IMAGE, "Environment": env},
    ExecutionRoleArn=os.environ["SM_ROLE"],
)
sm.create_endpoint_config(
    EndpointConfigName=NAME,
    ProductionVariants=[
        {
            "VariantName": "AllTraffic",
            "ModelName": NAME,
            "InstanceType": "ml.g6e.2xlarge",
            "InitialInstanceCount": 2,
            "ContainerStartupHealthCheckTimeoutInSeconds": 1800,
        }
    ],
)
sm.create_endpoint(EndpointName=NAME, EndpointConfigName=NAME)
