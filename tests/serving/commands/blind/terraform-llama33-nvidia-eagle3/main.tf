variable "model" {
  type    = string
  default = "meta-llama/Llama-3.3-70B-Instruct"
}

variable "draft" {
  type    = string
  default = "nvidia/Llama-3.3-70B-Instruct-Eagle3"
}

variable "tp" {
  type    = number
  default = 8
}

variable "vllm_version" { default = "0.10.0" }

locals {
  spec = {
    method                 = "eagle3"
    model                  = var.draft
    num_speculative_tokens = 3
  }
  args = concat(
    [
      "--model", var.model,
      "--served-model-name", "llama-3.3-70b",
      "--tensor-parallel-size", tostring(var.tp),
      "--max-model-len", "32768",
      "--max-num-seqs", "80",
      "--kv-cache-dtype", "fp8",
    ],
    ["--speculative-config", jsonencode(local.spec)],
  )
}

resource "kubernetes_deployment_v1" "vllm" {
  metadata {
    name      = "llama-33-70b"
    namespace = "inference"
  }
  spec {
    replicas = 3
    selector { match_labels = { app = "llama-33-70b" } }
    template {
      metadata { labels = { app = "llama-33-70b" } }
      spec {
        container {
          name  = "vllm"
          image = "vllm/vllm-openai:v${var.vllm_version}"
          args  = local.args
          env {
            name = "HF_TOKEN"
            value_from {
              secret_key_ref {
                name = "hf"
                key  = "token"
              }
            }
          }
          resources {
            limits = { "nvidia.com/gpu" = var.tp }
          }
        }
      }
    }
  }
}
