import sagemaker
from sagemaker import Model

session = sagemaker.Session()
region = session.boto_region_name

image_uri = f"763104351884.dkr.ecr.{region}.amazonaws.com/djl-inference:0.36.0-lmi20.0.0-cu128-v1.0"

model = Model(
    name="llama33-70b-w4a16",
    image_uri=image_uri,
    model_data="s3://acme-sm-models/llama33-70b/model.tar.gz",   # holds serving.properties
    role=sagemaker.get_execution_role(),
    env={"SERVING_FAIL_FAST": "true"},
)
model.deploy(
    endpoint_name="llama33-70b",
    initial_instance_count=2,
    instance_type="ml.g6e.12xlarge",   # 4 x L40S
    container_startup_health_check_timeout=1800,
)
