#!/bin/bash
# same script on every node, NODE_RANK and HEAD_IP come from the scheduler
set -euo pipefail
MODEL=moonshotai/Kimi-K2-Thinking
EXTRA=()
if [[ "${NODE_RANK}" != "0" ]]; then
  EXTRA+=(--headless)
fi
export NCCL_SOCKET_IFNAME=bond0
export VLLM_USE_FLASHINFER_MOE_FP4=0
source /opt/vllm-0.12.0/bin/activate

exec vllm serve "$MODEL" -tp 8 -pp 2 \
  --nnodes 2 --node-rank "$NODE_RANK" --master-addr "$HEAD_IP" --master-port 29501 \
  --max-model-len "${MAX_LEN:-131072}" --max_num_seqs=32 \
  --trust-remote-code --tool-call-parser kimi_k2 --reasoning-parser kimi_k2 --enable-auto-tool-choice \
  -O.mode=3 "${EXTRA[@]}"
