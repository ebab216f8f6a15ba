#!/usr/bin/env bash
# Start the code assistant. Usage: ./serve.sh [-m MODEL] [-t TP] [-p PORT] [-s]   (-s: without speculation)
set -euo pipefail

MODEL="${MODEL:-Qwen/Qwen3-Coder-30B-A3B-Instruct}"
REVISION=""
TP=2
PORT=8000
SPEC=1
MAX_LEN=32k

while getopts ":m:t:p:s" opt; do
  case "$opt" in
    m) MODEL="$OPTARG" ;;
    t) TP="$OPTARG" ;;
    p) PORT="$OPTARG" ;;
    s) SPEC=0 ;;
    *) echo "usage: $0 [-m MODEL] [-t TP] [-p PORT] [-s]" >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))

# 32k was too short for the repository agent
MAX_LEN=128k
DRAFT="lmsys/SGLang-EAGLE3-Qwen3-Coder-30B-A3B-Instruct-SpecForge"
K=4

export VLLM_LOGGING_LEVEL=INFO

args=(
  --served-model-name coder
  --host 0.0.0.0 --port "$PORT"
  -tp "$TP"
  --max-model-len "$MAX_LEN"
  --max-num-seqs 64
  --gpu_memory_utilization=0.92
  --enable-auto-tool-choice --tool-call-parser qwen3_coder
)
[[ -n "$REVISION" ]] && args+=(--revision "$REVISION")
if (( SPEC )); then
  args+=(--speculative-config "{\"method\": \"eagle3\", \"model\": \"${DRAFT}\", \"num_speculative_tokens\": ${K}}")
fi
# args+=(--kv-cache-dtype fp8)     # worse at tool calls, off since March

exec vllm serve "$MODEL" "${args[@]}" "$@"
