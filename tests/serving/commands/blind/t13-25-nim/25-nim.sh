#!/bin/bash
# NVIDIA NIM for LLMs, model-free container
set -e
export LOCAL_NIM_CACHE=${LOCAL_NIM_CACHE:-/var/cache/nim}
mkdir -p "$LOCAL_NIM_CACHE"

docker run -d --name nim-llama33 --restart unless-stopped \
  --gpus '"device=0,1,2,3"' \
  --shm-size=32GB \
  -u "$(id -u)" \
  -p 8000:8000 \
  -v "$LOCAL_NIM_CACHE:/opt/nim/.cache" \
  -e NGC_API_KEY \
  -e HF_TOKEN \
  -e NIM_MODEL_PATH=hf://meta-llama/Llama-3.3-70B-Instruct \
  -e NIM_SERVED_MODEL_NAME=meta/llama-3.3-70b-instruct \
  -e NIM_MAX_MODEL_LEN=16384 \
  -e NIM_PASSTHROUGH_ARGS="--tensor-parallel-size 4 --max-model-len 32768 --max-num-seqs 96 --kv-cache-dtype fp8 --speculative-config '{\"method\": \"eagle3\", \"model\": \"yuhuili/EAGLE3-LLaMA3.3-Instruct-70B\", \"num_speculative_tokens\": 3}'" \
  -e NIM_LOG_LEVEL=INFO \
  nvcr.io/nim/nvidia/vllm-model-free-nim:2.0.9
