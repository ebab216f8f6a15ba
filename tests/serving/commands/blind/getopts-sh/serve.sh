#!/usr/bin/env bash
# serve.sh - start the chat endpoint on gpu07
# usage: ./serve.sh [-m model] [-t tp] [-l max_len] [-q quant] [-n] [-e] [-- extra vllm flags]
set -euo pipefail

MODEL="${MODEL:-Qwen/Qwen3-32B}"
TP="${TP:-4}"
MAX_LEN="${MAX_LEN:-40960}"
QUANT=""
SPEC=1
EAGER=0
PORT=${PORT:-8000}
: "${GPU_UTIL:=0.92}"
: "${VLLM_LOGGING_LEVEL:=INFO}"

usage() { sed -n '2,3p' "$0"; exit 1; }
log()   { printf '[%(%F %T)T] %s\n' -1 "$*"; }

while getopts ":m:t:l:q:neh" opt; do
  case "$opt" in
    m) MODEL="$OPTARG" ;;
    t) TP="$OPTARG" ;;
    l) MAX_LEN="$OPTARG" ;;
    q) QUANT="$OPTARG" ;;
    n) SPEC=0 ;;
    e) EAGER=1 ;;
    h|*) usage ;;
  esac
done
shift $((OPTIND - 1))

build_args() {
  ARGS=(
    --host 0.0.0.0 --port "$PORT"
    --served-model-name qwen3-32b
    --tensor-parallel-size "$TP"
    --max-model-len "$MAX_LEN"
    --gpu-memory-utilization "$GPU_UTIL"
    --max-num-seqs 64        # 128 was too slow in the evening
    --reasoning-parser qwen3
  )
  if [[ -n "$QUANT" ]]; then ARGS+=(--quantization "$QUANT"); fi
  if (( SPEC )); then
    ARGS+=(--speculative-config "{\"method\": \"eagle3\", \"model\": \"${DRAFT:-RedHatAI/Qwen3-32B-speculator.eagle3}\", \"num_speculative_tokens\": ${K:-3}}")
  fi
  if (( EAGER )); then ARGS+=(--enforce-eager); fi
}

build_args
export VLLM_LOGGING_LEVEL VLLM_ATTENTION_BACKEND=FLASH_ATTN
export VLLM_WORKER_MULTIPROC_METHOD=spawn
log "starting $MODEL on $TP GPUs, port $PORT"
exec vllm serve "$MODEL" "${ARGS[@]}" "$@"
