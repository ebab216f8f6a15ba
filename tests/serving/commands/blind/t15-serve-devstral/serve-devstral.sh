#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")"

export HF_HOME=/mnt/models/hf
export CUDA_VISIBLE_DEVICES=0,1

uv run --with 'vllm==0.15.1' vllm serve mistralai/Devstral-Small-2507 \
  --tokenizer-mode mistral --config-format mistral --load-format mistral \
  --tensor-parallel-size 2 \
  --max-model-len 65536 \
  # --kv-cache-dtype fp8 \
  --max-num-seqs 24 \
  --no-enable-prefix-caching \
  --enable-auto-tool-choice --tool-call-parser mistral \
  --port 8001
