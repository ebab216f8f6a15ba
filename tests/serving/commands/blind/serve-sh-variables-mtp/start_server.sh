#!/usr/bin/env bash
set -euo pipefail

source /opt/venvs/vllm/bin/activate   # vllm 0.12.0

export CUDA_VISIBLE_DEVICES=0,1,2,3
export HF_HOME=/data/hf
export VLLM_WORKER_MULTIPROC_METHOD=spawn

MODEL=Qwen/Qwen3-Next-80B-A3B-Instruct
PORT=8001
TP=4
MAX_LEN=65536
LOG_DIR=/var/log/vllm
mkdir -p "$LOG_DIR"

# old:
# vllm serve Qwen/Qwen2.5-72B-Instruct --tensor-parallel-size 4 --max-model-len 32768

echo "Starting $MODEL on port $PORT"
vllm serve "$MODEL" \
    --host 0.0.0.0 \
    --port "$PORT" \
    --tensor-parallel-size "$TP" \
    --max-model-len "$MAX_LEN" \
    --max-num-seqs 64 \
    --gpu-memory-utilization 0.9 \
    --speculative-config '{"method":"qwen3_next_mtp","num_speculative_tokens":2}' \
    --tool-call-parser hermes --enable-auto-tool-choice \
    2>&1 | tee "$LOG_DIR/vllm_$(date +%Y%m%d_%H%M%S).log"
