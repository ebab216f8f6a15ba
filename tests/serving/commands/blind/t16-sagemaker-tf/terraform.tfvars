role_arn = "arn:aws:iam::123456789012:role/sagemaker-exec"
model_id = "Qwen/Qwen3-32B"
num_gpus = 4
