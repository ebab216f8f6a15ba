import boto3
import sagemaker
from sagemaker import Model
from sagemaker.utils import name_from_base

session = sagemaker.Session()
region = session.boto_region_name
role = sagemaker.get_execution_role()

CONTAINER_VERSION = "0.33.0-lmi15.0.0-cu128"
image_uri = f"763104351884.dkr.ecr.{region}.amazonaws.com/djl-inference:{CONTAINER_VERSION}"

INSTANCE_TYPE = "ml.p4d.24xlarge"
MODEL_ID = "deepseek-ai/DeepSeek-R1-Distill-Llama-70B"

# https://docs.djl.ai - LMI, vLLM async mode
vllm_env = {
    "HF_MODEL_ID": MODEL_ID,
    "OPTION_ROLLING_BATCH": "disable",
    "OPTION_ASYNC_MODE": "true",
    "OPTION_ENTRYPOINT": "djl_python.lmi_vllm.vllm_async_service",
    "OPTION_TENSOR_PARALLEL_DEGREE": "8",
    "OPTION_MAX_MODEL_LEN": str(16 * 1024),
    "OPTION_MAX_ROLLING_BATCH_SIZE": "32",
    "OPTION_DTYPE": "bf16",
    "OPTION_GPU_MEMORY_UTILIZATION": "0.9",
    "OPTION_REASONING_PARSER": "deepseek_r1",
    "OPTION_MODEL_LOADING_TIMEOUT": "1800",
    "SERVING_FAIL_FAST": "true",
}

model = Model(image_uri=image_uri, role=role, env=vllm_env, name=name_from_base("r1-distill-llama-70b"))
model.deploy(
    instance_type=INSTANCE_TYPE,
    initial_instance_count=1,
    endpoint_name=name_from_base("r1-70b"),
    container_startup_health_check_timeout=1800,
)

client = boto3.client("sagemaker-runtime", region_name=region)
