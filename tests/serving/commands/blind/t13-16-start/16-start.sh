#!/bin/bash
# Qwen3-235B, node gpu-a3. 2026-03: speculation off while we look into the p99
source /opt/venvs/vllm/bin/activate
export CUDA_VISIBLE_DEVICES=0,1,2,3
export VLLM_USE_DEEP_GEMM=1

nohup vllm serve Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 \
  --served-model-name qwen3-235b \
  --host 0.0.0.0 --port 8000 \
  --tensor-parallel-size 4 \
  --max-num-seqs 128 \
  # --speculative-config '{"method":"eagle3","model":"lmsys/Qwen3-235B-A22B-EAGLE3","num_speculative_tokens":3}' \
  --max-model-len 65536 \
  --kv-cache-dtype fp8 \
  --no-enable-prefix-caching \
  > /var/log/vllm/qwen3-235b.log 2>&1 &

echo $! > /run/vllm.pid
