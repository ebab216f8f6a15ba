#!/bin/bash
# vllm_config.yaml holds the site defaults, this box overrides a few
cd "$(dirname "$0")"
source .venv/bin/activate
export CUDA_VISIBLE_DEVICES=2,3
export VLLM_CACHE_ROOT=/scratch/vllm-cache

set -x
exec vllm serve deepseek-ai/DeepSeek-R1-Distill-Qwen-14B \
    --config vllm_config.yaml \
    --tensor-parallel-size 2 \
    --max-model-len 16384
