#!/bin/bash
# screen -dmS vllm bash -c "vllm serve moonshotai/Kimi-K2-Instruct-0905 -tp 16 --max-model-len 131072"

export HF_HUB_OFFLINE=1
MODEL=/mnt/nvme/Kimi-K2-Thinking

tmux kill-session -t vllm 2>/dev/null
tmux new-session -d -s vllm "source /opt/vllm/bin/activate && CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 vllm serve $MODEL -tp=8 --decode-context-parallel-size 8 --trust-remote-code --served-model-name kimi-k2-thinking --tool-call-parser kimi_k2 --reasoning-parser kimi_k2 --enable-auto-tool-choice --max-model-len 256K --max-num-seqs 24 --gpu_memory_utilization=0.95 -sc '{\"method\":\"eagle3\",\"model\":\"nvidia/Kimi-K2-Thinking-Eagle3\",\"num_speculative_tokens\":3}' 2>&1 | tee /var/log/vllm.log"

sleep 5
tmux capture-pane -p -t vllm | tail -n 5
