#!/usr/bin/env bash
# restart the 405B on the H200 box, run from the bastion
set -eu
HOST=ubuntu@h200-a.internal

ssh "$HOST" 'tmux kill-session -t vllm 2>/dev/null || true; tmux new-session -d -s vllm -x 220 -y 50'
ssh "$HOST" tmux send-keys -t vllm '"source ~/venvs/vllm-0.20/bin/activate"' Enter

ssh "$HOST" bash -s <<'REMOTE'
tmux send-keys -t vllm \
  'HF_HUB_OFFLINE=1 numactl --cpunodebind=0 --membind=0 vllm serve meta-llama/Llama-3.1-405B-Instruct-FP8 \
     --tensor-parallel-size 8 \
     --max-model-len 65536 \
     --max-num-seqs 32 \
     --gpu-memory-utilization 0.95 \
     --speculative-config '"'"'{"method": "draft_model", "model": "meta-llama/Llama-3.1-8B-Instruct", "num_speculative_tokens": 4, "draft_tensor_parallel_size": 8}'"'"' \
     --served-model-name llama-405b --port 8000 2>&1 | tee ~/logs/vllm.log' C-m
REMOTE

echo -n "waiting "
until ssh "$HOST" curl -sf localhost:8000/health; do echo -n .; sleep 15; done
echo ok
