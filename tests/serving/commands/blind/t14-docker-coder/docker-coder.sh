#!/bin/bash
# restart coder endpoint
NAME=coder
IMAGE=vllm/vllm-openai:v0.12.0
MODEL=Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8

docker rm -f $NAME 2>/dev/null || true
docker pull $IMAGE
docker run -d --name $NAME --restart unless-stopped \
  --runtime nvidia --gpus '"device=2,3"' --ipc=host \
  -v ~/.cache/huggingface:/root/.cache/huggingface \
  --env "HUGGING_FACE_HUB_TOKEN=$HF_TOKEN" \
  -p 8001:8000 \
  $IMAGE \
  --model $MODEL \
  --served-model-name coder qwen3-coder \
  -tp 2 \
  --max-model-len 200000 \
  --max-num-seqs 32 \
  --kv-cache-dtype fp8_e4m3 \
  --gpu-memory-utilization 0.95 \
  --enable-auto-tool-choice --tool-call-parser qwen3_coder

until curl -sf localhost:8001/health >/dev/null; do sleep 5; done
echo "$NAME is up"
