#!/usr/bin/env bash
# GLM-4.7 on 4x H200, see the model card
set -euo pipefail
cd "$(dirname "$0")"
source .venv/bin/activate

export HF_HOME=/data/hf
export HF_HUB_ENABLE_HF_TRANSFER=1
export VLLM_LOGGING_LEVEL=INFO
mkdir -p logs

exec vllm serve zai-org/GLM-4.7-FP8 \
     --tensor-parallel-size 4 \
     --speculative-config.method mtp \
     --speculative-config.num_speculative_tokens 1 \
     --tool-call-parser glm47 \
     --reasoning-parser glm45 \
     --enable-auto-tool-choice \
     --max-model-len 131072 \
     --max-num-seqs 64 \
     --served-model-name glm-4.7-fp8 2>&1 | tee "logs/glm-$(date +%F).log"
