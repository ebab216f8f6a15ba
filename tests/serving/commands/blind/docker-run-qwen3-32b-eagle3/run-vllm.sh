#!/bin/bash
# Qwen3 32B on gpu-box-2 (2x H100)
docker stop vllm-qwen3 2>/dev/null
docker rm vllm-qwen3 2>/dev/null

docker run -d --name vllm-qwen3 \
  --gpus '"device=0,1"' \
  --restart unless-stopped \
  --ipc=host \
  -p 8000:8000 \
  -v ~/.cache/huggingface:/root/.cache/huggingface \
  -e HF_TOKEN=$HF_TOKEN \
  vllm/vllm-openai:v0.11.0 \
  --model Qwen/Qwen3-32B \
  --served-model-name qwen3-32b \
  --tensor-parallel-size 2 \
  --max-model-len 32768 \
  --max-num-seqs 128 \
  --gpu-memory-utilization 0.90 \
  --reasoning-parser qwen3 \
  --enable-auto-tool-choice --tool-call-parser hermes \
  --speculative-config '{"method": "eagle3", "model": "RedHatAI/Qwen3-32B-speculator.eagle3", "num_speculative_tokens": 3}'

docker logs -f vllm-qwen3
