#!/bin/bash
# start GLM on this box; profiles/common.env is in git, profiles/local.env is per machine
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1

set -a
source profiles/common.env
[ -f profiles/local.env ] && . profiles/local.env
set +a

: "${MTP_K:=2}"
: "${GPU_UTIL:=0.90}"

VLLM_ARGS=(
  "$MODEL_ID"
  --served-model-name "${SERVED_NAME:-glm}"
  --tensor-parallel-size "$TP_SIZE"
  --max-num-seqs "$MAX_NUM_SEQS"
  --kv-cache-dtype "$KV_CACHE_DTYPE"
  --gpu-memory-utilization "$GPU_UTIL"
)

# 202752 is what the checkpoint can do, we do not have the memory for it
VLLM_ARGS+=(--max-model-len "$MAX_MODEL_LEN")

if [[ "${ENABLE_TOOLS:-1}" == "1" ]]; then
  VLLM_ARGS+=(--enable-auto-tool-choice --tool-call-parser glm47 --reasoning-parser glm45)
fi

if (( MTP_K > 0 )); then
  VLLM_ARGS+=(--speculative-config "{\"method\":\"mtp\",\"num_speculative_tokens\":${MTP_K}}")
fi

mkdir -p logs
nohup vllm serve "${VLLM_ARGS[@]}" >"logs/serve-$(date +%F).log" 2>&1 &
echo $! > serve.pid
