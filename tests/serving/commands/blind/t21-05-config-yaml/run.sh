#!/bin/sh
# gpt-oss on one node; the model here wins over the one in config.yaml
cd "$(dirname "$0")"
. ./env.sh
uv run --no-project --with vllm==0.32.0 \
    vllm serve openai/gpt-oss-120b --config config.yaml --max-model-len 65536 --api-key "$API_KEY" 2>&1 | tee vllm.log
