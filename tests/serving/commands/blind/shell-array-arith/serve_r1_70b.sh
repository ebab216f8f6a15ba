#!/usr/bin/env bash
# Production start script of the reasoning endpoint. Usage: serve_r1_70b.sh [port] [extra vllm args...]
set -euo pipefail
cd "$(dirname "$0")"

MODEL=${MODEL:-deepseek-ai/DeepSeek-R1-Distill-Llama-70B}
DRAFT=${DRAFT:-/mnt/heads/r1-distill-llama-70b-eagle3}
PORT="${1:-8000}"
TP=4
MAX_LEN=$((32 * 1024))
K=3
USE_SPEC=1
ENABLE_FP8_KV=false

ARGS=(
  --host 0.0.0.0 --port "$PORT"
  --tensor-parallel-size "$TP"
  --max-model-len "$MAX_LEN"
  --gpu-memory-utilization 0.88   # leave room for the drafter
  #--enforce-eager
)
ARGS+=(--max-num-seqs 128)

if [[ "$ENABLE_FP8_KV" == "true" ]]; then
  ARGS+=(--kv-cache-dtype fp8)
fi

if (( USE_SPEC )); then
  ARGS+=(--speculative-config "{\"method\": \"eagle3\", \"model\": \"$DRAFT\", \"num_speculative_tokens\": $K, \"draft_tensor_parallel_size\": 1}")
else
  ARGS+=(--max-num-batched-tokens 16384)
fi

export VLLM_ATTENTION_BACKEND=FLASH_ATTN
export VLLM_LOGGING_LEVEL=WARNING
exec vllm serve "$MODEL" "${ARGS[@]}" --max-num-seqs 64 "${@:2}"
