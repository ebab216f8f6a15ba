terraform {
  required_providers {
    helm = {
      source  = "hashicorp/helm"
      version = "~> 2.17"
    }
  }
}

variable "model_id" {
  type    = string
  default = "microsoft/phi-4"
}

variable "gpu_count" {
  type    = number
  default = 2
}

variable "max_model_len" {
  type        = number
  description = "context window"
  default     = 16384
}

locals {
  served_name = "phi-4"
  spec = {
    method                 = "ngram"
    num_speculative_tokens = 4
    prompt_lookup_max      = 4
    prompt_lookup_min      = 2
  }
}

resource "helm_release" "vllm" {
  name             = "phi4"
  namespace        = "llm"
  create_namespace = true
  chart            = "${path.module}/charts/chart-helm"
  timeout          = 1800

  values = [yamlencode({
    replicaCount = 1
    image = {
      repository = "vllm/vllm-openai"
      tag        = "v0.12.0"
      command = [
        "vllm", "serve", var.model_id,
        "--served-model-name", local.served_name,
        "--tensor-parallel-size", tostring(var.gpu_count),
        "--max-model-len", tostring(var.max_model_len),
        "--max-num-seqs", "56",
        "--dtype", "bfloat16",
        "--speculative-config", jsonencode(local.spec),
        "--host", "0.0.0.0", "--port", "8000",
      ]
    }
    resources = {
      requests = { cpu = 8, memory = "64Gi", "nvidia.com/gpu" = var.gpu_count }
      limits   = { cpu = 8, memory = "64Gi", "nvidia.com/gpu" = var.gpu_count }
    }
  })]
}
