#!/usr/bin/env fish
# ~/.config/fish/functions would be nicer, this is what runs in tmux on gpu07
set -gx VLLM_USE_FLASHINFER_MOE_FP8 1
set -gx HF_HUB_CACHE /nvme/hf
set model Qwen/Qwen3-32B
set draft lmsys/Qwen3-235B-A22B-EAGLE3
set model Qwen/Qwen3-235B-A22B-Thinking-2507-FP8
set -q VLLM_CTX; or set VLLM_CTX 131072

set -l args -tp 8 --enable-expert-parallel --max-num-seqs 64
set -a args --kv-cache-dtype fp8 --gpu-memory-utilization 0.9
set -a args --reasoning-parser deepseek_r1

vllm serve $model $args \
    --max-model-len $VLLM_CTX \
    --speculative-config.method eagle3 \
    --speculative-config.model $draft \
    --speculative-config.num_speculative_tokens 4 \
    --disable-log-requests --port 8000
