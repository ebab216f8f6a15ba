variable "vllm_tag" {
  type    = string
  default = "v0.28.0"
}

job "gemma" {
  datacenters = ["dc1"]
  type        = "service"
  group "vllm" {
    count = 1
    network {
      port "http" { to = 8000 }
    }
    task "server" {
      driver = "docker"
      config {
        image = "vllm/vllm-openai:${var.vllm_tag}"
        ipc_mode = "host"
        ports = ["http"]
        args = [
          "--model", "google/gemma-3-27b-it",
          "--tensor-parallel-size", "2",
          "--max-model-len", "16384",
          "--max-num-seqs", "32",
          "--limit-mm-per-prompt", "{\"image\": 1}",
          "--speculative-config", "{\"method\": \"eagle3\", \"model\": \"/models/gemma3-27b-eagle3\", \"num_speculative_tokens\": 4}",
        ]
      }
      env {
        HF_HOME = "/models/hf"
      }
      resources {
        cpu    = 16000
        memory = 65536
        device "nvidia/gpu" { count = 2 }
      }
    }
  }
}
