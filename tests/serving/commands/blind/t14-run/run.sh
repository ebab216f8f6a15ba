#!/usr/bin/env bash
set -a
source /etc/vllm/site.env
set +a

exec /opt/vllm/bin/vllm serve "$MODEL_PATH" \
  --served-model-name "${SERVED_NAME:-chat}" \
  --tensor-parallel-size "$TP" \
  --max-model-len "${MAX_LEN:-32768}" \
  --max-num-seqs 128 \
  --gpu-memory-utilization 0.92 \
  --enable-prefix-caching \
  --host 0.0.0.0 --port 8000
