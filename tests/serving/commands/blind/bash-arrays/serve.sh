#!/usr/bin/env bash
# Usage: ENABLE_MTP=0 ./serve.sh     (defaults are what runs in production)
set -euo pipefail

MODEL_DIR="${MODEL_DIR:-Qwen/Qwen3.5-35B-A3B}"
TP="${TP:-2}"
: "${MAX_LEN:=64K}"
: "${SEQS:=$((8 * 12))}"
GPU_UTIL=${GPU_UTIL:-0.88}
ENABLE_MTP="${ENABLE_MTP:-1}"
MTP_K="${MTP_K:-2}"
DEBUG="${DEBUG:-0}"

export PYTORCH_ALLOC_CONF=expandable_segments:True
export VLLM_LOGGING_LEVEL=INFO

VLLM_ARGS=(
  "$MODEL_DIR"
  --served-model-name qwen3.5-35b
  --host 0.0.0.0 --port 8000
  --tensor-parallel-size "$TP"
  --max-model-len "$MAX_LEN"
  --max-num-seqs "$SEQS"
  --max-num-batched-tokens 16k
  --device-memory-utilization "$GPU_UTIL"   # new spelling
  --language-model-only
  --mamba-cache-mode align
  --reasoning-parser qwen3
)

if [[ "$ENABLE_MTP" == "1" ]]; then
  VLLM_ARGS+=(-sc "{\"method\":\"mtp\",\"num_speculative_tokens\":${MTP_K}}")
fi

if [[ "$DEBUG" == "1" ]]; then
  VLLM_ARGS+=(--enforce-eager --max-num-seqs 4)
fi

[ -f "$HOME/.vllm_extra" ] && source "$HOME/.vllm_extra"

exec uv run --with "vllm==0.30.0" vllm serve "${VLLM_ARGS[@]}" 2>&1 | tee -a /var/log/vllm.log
