#!/usr/bin/env bash
# chat + embeddings for the RAG demo, one A100-80G each
set -uo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
logs=$here/logs; mkdir -p "$logs"

pids=()
start() {            # start NAME GPU COMMAND...
  local name=$1 gpu=$2; shift 2
  echo "[$(date +%T)] $name on GPU $gpu"
  CUDA_VISIBLE_DEVICES=$gpu "$@" >"$logs/$name.log" 2>&1 &
  pids+=($!)
}
cleanup() { kill "${pids[@]}" 2>/dev/null; wait; }
trap cleanup INT TERM EXIT

start embed 1 vllm serve BAAI/bge-m3 --runner pooling --port 8001 --gpu-memory-utilization 0.3 --max-model-len 8192

start chat 0 vllm serve Qwen/Qwen3-32B-FP8 \
  --port 8000 --max-model-len 40960 --max-num-seqs 64 \
  --gpu-memory-utilization "${CHAT_UTIL:-0.92}" \
  --reasoning-parser qwen3 \
  --speculative-config "$(cat <<'JSON'
{
  "method": "eagle3",
  "model": "AngelSlim/Qwen3-32B_eagle3",
  "num_speculative_tokens": 4
}
JSON
)"

start webui - open-webui serve --port 3000

wait -n
