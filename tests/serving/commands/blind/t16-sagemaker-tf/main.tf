terraform {
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.0"
    }
  }
}

variable "region" {
  default = "us-west-2"
}

variable "role_arn" {
  type = string
}

variable "model_id" {
  type    = string
  default = "Qwen/Qwen3-8B"
}

variable "max_model_len" {
  type    = number
  default = 16384
}

variable "num_gpus" {
  type    = number
  default = 1
}

locals {
  image = "763104351884.dkr.ecr.${var.region}.amazonaws.com/vllm:0.32.0-gpu-py312-cu130-ubuntu22.04-sagemaker"
}

resource "aws_sagemaker_model" "llm" {
  name               = "qwen3-vllm"
  execution_role_arn = var.role_arn

  primary_container {
    image = local.image
    environment = {
      SM_VLLM_MODEL                 = var.model_id
      SM_VLLM_MAX_MODEL_LEN         = tostring(var.max_model_len)
      SM_VLLM_TENSOR_PARALLEL_SIZE  = var.num_gpus
      SM_VLLM_MAX_NUM_SEQS          = "64"
      SM_VLLM_ENABLE_PREFIX_CACHING = "true"
      SM_VLLM_ENFORCE_EAGER         = "false"
      SM_VLLM_SPECULATIVE_CONFIG = jsonencode({
        method                 = "eagle3"
        model                  = "RedHatAI/Qwen3-32B-speculator.eagle3"
        num_speculative_tokens = 4
      })
      VLLM_LOGGING_LEVEL = "WARNING"
    }
  }
}

resource "aws_sagemaker_endpoint_configuration" "llm" {
  name = "qwen3-vllm"
  production_variants {
    variant_name           = "AllTraffic"
    model_name             = aws_sagemaker_model.llm.name
    initial_instance_count = 1
    instance_type          = "ml.g6e.12xlarge"
    container_startup_health_check_timeout_in_seconds = 900
  }
}

resource "aws_sagemaker_endpoint" "llm" {
  name                 = "qwen3-vllm"
  endpoint_config_name = aws_sagemaker_endpoint_configuration.llm.name
}
