#!/usr/bin/env bash
# usage: ./serve.sh <model> <tp> [port]
set -euo pipefail

MODEL="${1:?model missing}"
TP="${2:?tensor parallel size missing}"
PORT="${3:-8000}"

docker rm -f vllm >/dev/null 2>&1 || true
docker run -d --name vllm --gpus all --ipc=host \
  -p "${PORT}:8000" \
  -v /srv/models:/models \
  -e HF_TOKEN \
  vllm/vllm-openai:v0.10.1.1 \
  --model "${MODEL}" \
  --tensor-parallel-size "${TP}" \
  --max-model-len 32768 \
  --gpu-memory-utilization 0.9 \
  --enable-prefix-caching

docker logs -f vllm
