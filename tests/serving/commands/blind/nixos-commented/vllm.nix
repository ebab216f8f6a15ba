{ config, lib, pkgs, ... }:
let
  cfg = {
    model = "Qwen/Qwen3-30B-A3B-Thinking-2507-FP8";
    image = "vllm/vllm-openai:v0.12.0";
    port = 8000;
    ctx = 32 * 1024;
  };
in {
  hardware.nvidia-container-toolkit.enable = true;
  virtualisation.oci-containers.containers.vllm = {
    autoStart = true;
    image = cfg.image;
    ports = [ "${toString cfg.port}:8000" ];
    environment = {
      VLLM_USE_DEEP_GEMM = "0";
      # VLLM_ATTENTION_BACKEND = "FLASHINFER";
    };
    cmd = [
      # "--model=QuantTrio/Qwen3-VL-30B-A3B-Instruct-AWQ"
      # "--dtype=float16"
      "--model" cfg.model
      "--max-model-len" (toString cfg.ctx)
      "--gpu-memory-utilization=0.90"
      # "--gpu-memory-utilization=0.945"
      "--max-num-seqs=8"
      "--reasoning-parser=deepseek_r1"
      # "--speculative-config" (builtins.toJSON { method = "ngram"; num_speculative_tokens = 5; prompt_lookup_max = 4; })
      "--enable-prefix-caching"
    ];
    extraOptions = [
      "--ipc=host"
      "--device=nvidia.com/gpu=all"
      "--health-cmd=curl -f http://127.0.0.1:8000/health"
    ];
  };
}
