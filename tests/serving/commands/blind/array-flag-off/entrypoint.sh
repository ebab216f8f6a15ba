#!/usr/bin/env bash
set -euo pipefail
MODEL_PATH=/models/GLM-4.7-FP8
# MTP is off by default: --speculative-config is the flag most likely to be rejected by a build.
VLLM_EXTRA_ARGS=()
if [ "${ENABLE_MTP:-false}" = "true" ]; then
  VLLM_EXTRA_ARGS+=(--speculative-config '{"method":"mtp","num_speculative_tokens":3}')
  echo "[entry] MTP speculative decoding enabled"
fi
if [ "${KV_FP8:-1}" = "1" ]; then
  VLLM_EXTRA_ARGS+=(--kv-cache-dtype fp8)
fi

exec vllm serve "$MODEL_PATH" \
  --served-model-name glm-4.7 \
  --tensor-parallel-size "${TP:-8}" \
  --max-model-len "${MAX_MODEL_LEN:-$((128 * 1024))}" \
  --max-num-batched-tokens 16K \
  --reasoning-parser glm45 --tool-call-parser glm47 --enable-auto-tool-choice \
  --async-scheduling \
  --api-key "${VLLM_API_KEY:?set me}" \
  ${VLLM_EXTRA_ARGS[@]+"${VLLM_EXTRA_ARGS[@]}"}
