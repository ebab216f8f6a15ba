#!/bin/bash
# pip install vllm==0.8.3
CUDA_VISIBLE_DEVICES=0,1 nohup python -u -m vllm.entrypoints.openai.api_server \
  --model=meta-llama/Meta-Llama-3.1-8B-Instruct --dtype float16 \
  --tensor-parallel-size=2 --max-model-len=8192 --max-num-seqs=16 \
  --swap_space 16 --use-v2-block-manager --disable-log-requests --enable-chunked-prefill=False \
  --speculative_model yuhuili/EAGLE-LLaMA3.1-Instruct-8B \
  --num_speculative_tokens 5 \
  --speculative-draft-tensor-parallel-size 1 \
  > server.log 2>&1 &
