job "llm" {
  datacenters = ["fra1"]
  type        = "service"

  meta {
    model = "Qwen/Qwen3-14B"
    tp    = "1"
  }

  group "qwen-large" {
    count = 2
    meta {
      model = "Qwen/Qwen3-32B-FP8"
      tp    = "2"
    }
    network { port "http" { to = 8000 } }

    task "vllm" {
      driver = "docker"
      config {
        image   = "vllm/vllm-openai:v0.11.2"
        runtime = "nvidia"
        ipc_mode = "host"
        ports   = ["http"]
        args = [
          "--model=${NOMAD_META_model}",
          "--served-model-name", "qwen3",
          "--tensor-parallel-size", "${NOMAD_META_tp}",
          "--max-model-len", "40960",
          "--max-num-seqs", "96",
          "--kv-cache-dtype", "fp8",
          "--reasoning-parser", "qwen3",
        ]
      }
      env { VLLM_LOGGING_LEVEL = "WARNING" }
      resources {
        cpu = 16000
        memory = 131072
        device "nvidia/gpu" { count = 2 }
      }
    }
  }
}
