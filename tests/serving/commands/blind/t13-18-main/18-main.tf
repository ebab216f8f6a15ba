terraform {
  required_providers {
    kubernetes = {
      source  = "hashicorp/kubernetes"
      version = "~> 2.36"
    }
  }
}

variable "model_id" {
  type    = string
  default = "google/gemma-3-27b-it"
}

variable "gpus" {
  type    = number
  default = 2
}

variable "max_model_len" {
  type    = number
  default = 32768
}

variable "lookup_speculation" {
  description = "prompt lookup decoding"
  type        = bool
  default     = true
}

locals {
  name = "gemma3-27b"
  args = concat(
    [
      var.model_id,
      "--served-model-name=${local.name}",
      "--tensor-parallel-size=${var.gpus}",
      "--max-model-len=${var.max_model_len}",
      "--max-num-seqs=80",
      "--limit-mm-per-prompt=${jsonencode({ image = 2 })}",
    ],
    var.lookup_speculation ? [
      "--speculative-config=${jsonencode({
        method                 = "ngram"
        num_speculative_tokens = 4
        prompt_lookup_max      = 5
        prompt_lookup_min      = 2
      })}",
    ] : [],
  )
}

resource "kubernetes_deployment_v1" "vllm" {
  metadata {
    name      = local.name
    namespace = "llm"
  }
  spec {
    replicas = 1
    selector {
      match_labels = { app = local.name }
    }
    template {
      metadata {
        labels = { app = local.name }
      }
      spec {
        container {
          name    = "vllm"
          image   = "vllm/vllm-openai:v0.14.1"
          command = ["vllm", "serve"]
          args    = local.args
          port {
            container_port = 8000
          }
          resources {
            limits = {
              "nvidia.com/gpu" = var.gpus
            }
          }
        }
      }
    }
  }
}
