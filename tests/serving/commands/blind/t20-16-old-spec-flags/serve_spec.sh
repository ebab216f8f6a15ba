#!/bin/bash
# speculative decoding: 32B target, 1.5B drafter (works great on 0.6.x)
TARGET=deepseek-ai/DeepSeek-R1-Distill-Qwen-32B
DRAFT=deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B

python -m vllm.entrypoints.openai.api_server \
    --model $TARGET \
    --speculative_model $DRAFT \
    --num_speculative_tokens 5 \
    --speculative-draft-tensor-parallel-size 1 \
    --use-v2-block-manager \
    -tp 4 --gpu_memory_utilization 0.9 \
    --max-model-len 16384 --seed 42
