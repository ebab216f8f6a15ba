model        = "nvidia/Llama-3.3-70B-Instruct-FP8"
tp           = 4
vllm_version = "0.13.0"
