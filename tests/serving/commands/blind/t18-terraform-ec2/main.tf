terraform {
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 5.0" }
  }
}

provider "aws" { region = var.region }

locals {
  name = "vllm-${var.environment}"
}

resource "aws_instance" "vllm" {
  ami                    = var.ami_id
  instance_type          = var.instance_type
  subnet_id              = var.subnet_id
  vpc_security_group_ids = var.security_group_ids
  iam_instance_profile   = "vllm-node"

  user_data = templatefile("${path.module}/user_data.sh.tftpl", {
    vllm_version           = var.vllm_version
    model_id               = var.model_id
    tensor_parallel_size   = var.tensor_parallel_size
    max_model_len          = var.max_model_len
    gpu_memory_utilization = 0.9
    region                 = var.region
  })

  root_block_device {
    volume_size = 500
    volume_type = "gp3"
  }

  tags = { Name = local.name }
}

output "endpoint" { value = "http://${aws_instance.vllm.private_ip}:8000/v1" }
