#!/usr/bin/env bash
# usage: serve_r1.sh [1.5b|7b|8b|14b|32b|70b] [extra vllm args...]
set -euo pipefail

SIZE="${1:-32b}"
shift || true

TP=1
MAX_LEN=16384
EXTRA=(--reasoning-parser deepseek_r1)

case "$SIZE" in
  1.5b|7b|14b)
    MODEL="deepseek-ai/DeepSeek-R1-Distill-Qwen-${SIZE^^}"
    ;;
  32b)
    MODEL="deepseek-ai/DeepSeek-R1-Distill-Qwen-${SIZE^^}"
    TP=2
    MAX_LEN=32768
    ;;
  8b|70b)
    MODEL="deepseek-ai/DeepSeek-R1-Distill-Llama-${SIZE^^}"
    [[ "$SIZE" == 70b ]] && TP=4
    ;;
  *)
    echo "unknown size $SIZE" >&2; exit 2 ;;
esac

if [[ -n "${LONG_CTX:-}" ]]; then
  MAX_LEN=131072
  EXTRA+=(--kv-cache-dtype fp8)
fi

TP="${TP_OVERRIDE:-$TP}"

export VLLM_WORKER_MULTIPROC_METHOD=spawn
exec uv run --with vllm==0.32.0 vllm serve "$MODEL" \
  --tensor-parallel-size "$TP" \
  --max-model-len "$MAX_LEN" \
  --max-num-seqs 48 \
  "${EXTRA[@]}" "$@"
