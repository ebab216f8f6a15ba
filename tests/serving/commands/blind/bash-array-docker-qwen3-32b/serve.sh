#!/usr/bin/env bash
set -euo pipefail

MODEL="Qwen/Qwen3-32B"
DRAFT="AngelSlim/Qwen3-32B_eagle3"
K=${K:-4}
SPEC=${SPEC:-1}
TP=4
VLLM_VERSION="${VLLM_VERSION:-v0.11.2}"
NAME=qwen3

docker rm -f "$NAME" 2>/dev/null || true

DOCKER_ARGS=(
  -d --name "$NAME"
  --gpus all --ipc=host --network host
  -v "$HOME/.cache/huggingface:/root/.cache/huggingface"
  -e HF_TOKEN
  --restart always
)

ARGS=(
  "$MODEL"
  -tp "$TP"
  --max-model-len "$((32 * 1024))"
  --max-num-seqs 64                     # 128 ran out of KV cache
  --gpu-memory-utilization 0.92
  --reasoning-parser qwen3
  --served-model-name qwen3-32b "$MODEL"
)

if [[ "$SPEC" == 1 ]]; then
  ARGS+=(--speculative-config "{\"method\": \"eagle3\", \"model\": \"${DRAFT}\", \"num_speculative_tokens\": ${K}}")
else
  ARGS+=(--enable-prefix-caching)
fi

exec docker run "${DOCKER_ARGS[@]}" "vllm/vllm-openai:${VLLM_VERSION}" "${ARGS[@]}"
