#!/usr/bin/env bash
# Start the chat model. Called by supervisor; override with MODEL=..., TP=..., SPEC=off
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

PORT="${1:-8000}"
MODEL="${MODEL:-Qwen/Qwen3-32B}"
TP="${TP:-4}"
MAX_LEN=$((32 * 1024))

export HF_HOME="${HF_HOME:-/mnt/models/hf}"
export VLLM_LOGGING_LEVEL=INFO

args=(
  "$MODEL"
  --served-model-name qwen3-32b
  --host 0.0.0.0
  --tensor-parallel-size "$TP"
  --max-model-len "$MAX_LEN"
  --max-num-seqs 128
  --gpu-memory-utilization 0.90
  --reasoning-parser qwen3
  --enable-auto-tool-choice --tool-call-parser hermes
)

if [[ "${SPEC:-on}" == "on" ]]; then
  args+=(--speculative-config '{"method": "eagle3", "model": "RedHatAI/Qwen3-32B-speculator.eagle3", "num_speculative_tokens": 3}')
fi

mkdir -p logs
exec vllm serve "${args[@]}" --port "$PORT" >> "logs/vllm-$PORT.log" 2>&1
