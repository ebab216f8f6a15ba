environment        = "prod"
ami_id             = "ami-0aa7d40eeae50c9a9"
subnet_id          = "subnet-0c1d2e3f"
security_group_ids = ["sg-0a1b2c3d"]
instance_type      = "g6e.12xlarge"
model_id           = "Qwen/Qwen3-Coder-30B-A3B-Instruct"
max_model_len      = 65536
