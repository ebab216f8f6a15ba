#!/bin/bash
# one copy per L40S, nginx balances over 8000..8003
MODEL=Qwen/Qwen2.5-14B-Instruct-AWQ
mkdir -p logs

for GPU in 0 1 2 3; do
  PORT=$((8000 + GPU))
  CUDA_VISIBLE_DEVICES=$GPU nohup vllm serve "$MODEL" \
    --port $PORT \
    --quantization awq_marlin \
    --dtype half \
    --max-model-len 16384 \
    --max-num-seqs 64 \
    --served-model-name qwen14b \
    > logs/vllm-$GPU.log 2>&1 &
done

sudo systemctl reload nginx
wait
