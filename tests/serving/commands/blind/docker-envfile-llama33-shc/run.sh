#!/usr/bin/env bash
# start (or restart) the chat model on gpu-node-3
set -euo pipefail
cd "$(dirname "$0")"

TP=8                       # used by bench.sh
PORT=${PORT:-8100}
IMAGE=vllm/vllm-openai:v0.13.0

docker rm -f llama33 >/dev/null 2>&1 || true

docker run -d --name llama33 \
  --restart unless-stopped \
  --gpus '"device=4,5,6,7"' \
  --ipc=host --ulimit memlock=-1 \
  -p ${PORT}:8000 \
  --env-file ./vllm.env \
  -e MAX_SEQS=96 \
  -v /nvme/hf:/root/.cache/huggingface \
  --entrypoint /bin/bash \
  ${IMAGE} -c 'exec vllm serve "$MODEL" \
      --tensor-parallel-size "$TP" \
      --max-model-len "$CTX" \
      --max-num-seqs "${MAX_SEQS:-256}" \
      --gpu-memory-utilization "${GPU_UTIL:-0.92}" \
      --speculative-config "$SPEC" \
      --served-model-name "${NAME:-$MODEL}" ${EXTRA}'

docker logs -f llama33
