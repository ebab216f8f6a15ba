#!/bin/bash
# start both models of the demo box (8x H100)
S=llm
tmux kill-session -t $S 2>/dev/null
tmux new-session -d -s $S -n big
tmux send-keys -t $S:big 'source ~/v/bin/activate' C-m
tmux send-keys -t $S:big 'CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve Qwen/Qwen3-235B-A22B-GPTQ-Int4 --tensor-parallel-size 4 --enable-expert-parallel --max-model-len 32768 --port 8000' C-m
tmux new-window -t $S -n coder
tmux send-keys -t $S:coder 'source ~/v/bin/activate' C-m
tmux send-keys -t $S:coder "CUDA_VISIBLE_DEVICES=4,5,6,7 vllm serve Qwen/Qwen3-Coder-30B-A3B-Instruct --tensor-parallel-size 4 --max-model-len 131072 --port 8001 --speculative-config '{\"method\":\"ngram\",\"num_speculative_tokens\":8,\"prompt_lookup_max\":4}'" C-m
tmux new-window -t $S -n proxy 'litellm --config ~/litellm.yaml --port 4000'
tmux attach -t $S
