#!/usr/bin/env bash
# DeepSeek-R1 on the 8x H200 box (gpu-h200-02). Keep in sync with the wiki.
set -euo pipefail

source /opt/venvs/vllm/bin/activate

export HF_HOME=/data/hf
export VLLM_USE_DEEP_GEMM=1
export NCCL_SOCKET_IFNAME=bond0
export VLLM_LOGGING_LEVEL=INFO

LOG_DIR=/var/log/vllm
mkdir -p "$LOG_DIR"

nohup vllm serve deepseek-ai/DeepSeek-R1 \
    --host 0.0.0.0 \
    --port 8000 \
    --served-model-name deepseek-r1 \
    --tensor-parallel-size 8 \
    --max-model-len 65536 \
    --max-num-seqs 128 \
    --max-num-batched-tokens 16384 \
    --gpu-memory-utilization 0.92 \
    --trust-remote-code \
    --reasoning-parser deepseek_r1 \
    --speculative-config '{"method": "deepseek_mtp", "num_speculative_tokens": 2}' \
    > "$LOG_DIR/r1-$(date +%F).log" 2>&1 &

echo $! > /run/vllm-r1.pid
echo "vLLM started, pid $(cat /run/vllm-r1.pid)"
