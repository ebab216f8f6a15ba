import boto3

region = "us-east-1"
account_id = "763104351884"
sm = boto3.client("sagemaker", region_name=region)

name = "llama31-8b-eagle3"

sm.create_model(
    ModelName=name,
    ExecutionRoleArn="arn:aws:iam::123456789012:role/SageMakerExecutionRole",
    PrimaryContainer={
        "Image": f"{account_id}.dkr.ecr.{region}.amazonaws.com/vllm:0.11.2-sagemaker-v1.2",
        "Environment": {
            "SM_VLLM_MODEL": "meta-llama/Llama-3.1-8B-Instruct",
            "HUGGING_FACE_HUB_TOKEN": "hf_xxx",
            "SM_VLLM_MAX_MODEL_LEN": "16384",
            "SM_VLLM_MAX_NUM_SEQS": "64",
            "SM_VLLM_TENSOR_PARALLEL_SIZE": "1",
            "SM_VLLM_GPU_MEMORY_UTILIZATION": "0.9",
            "SM_VLLM_DTYPE": "bfloat16",
            "SM_VLLM_SPECULATIVE_CONFIG": '{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 4}',
        },
    },
)

sm.create_endpoint_config(
    EndpointConfigName=name,
    ProductionVariants=[{
        "VariantName": "AllTraffic",
        "ModelName": name,
        "InstanceType": "ml.g6e.2xlarge",
        "InitialInstanceCount": 2,
        "ContainerStartupHealthCheckTimeoutInSeconds": 1200,
    }],
)
sm.create_endpoint(EndpointName=name, EndpointConfigName=name)
