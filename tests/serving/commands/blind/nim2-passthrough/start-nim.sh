#!/bin/bash
# NIM (vLLM backend) with a Hugging Face checkpoint
export NGC_API_KEY=$(cat /etc/nim/ngc.key)
export LOCAL_NIM_CACHE=/data/nim-cache
mkdir -p "$LOCAL_NIM_CACHE"

docker run -d --name nim-nemotron --restart always \
  --gpus '"device=2,3"' \
  --shm-size=16GB \
  -u $(id -u) \
  -p 8010:8000 \
  -v "$LOCAL_NIM_CACHE:/opt/nim/.cache" \
  -e NGC_API_KEY -e HF_TOKEN \
  -e NIM_MODEL_PATH=hf://nvidia/Llama-3.1-Nemotron-Nano-8B-v1 \
  -e NIM_SERVED_MODEL_NAME=nemotron-nano-8b \
  -e NIM_MAX_MODEL_LEN=32768 \
  -e NIM_KVCACHE_PERCENT=0.85 \
  -e NIM_LOG_LEVEL=INFO \
  -e NIM_PASSTHROUGH_ARGS="--tensor-parallel-size 2 --max-model-len 65536 --max-num-seqs 64 --enable-prefix-caching" \
  nvcr.io/nim/nvidia/llm-nim:2.0.4 \
  --max-num-seqs 96
