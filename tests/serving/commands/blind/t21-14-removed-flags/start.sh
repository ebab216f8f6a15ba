#!/bin/bash
# llama 3.3 with a small draft model
docker rm -f llama 2>/dev/null
docker run -d --name llama --gpus '"device=0,1,2,3"' --ipc=host -p 8000:8000 \
  -e HF_TOKEN="$HF_TOKEN" -e VLLM_USE_V1=0 \
  -v "$HOME/.cache/huggingface:/root/.cache/huggingface" \
  vllm/vllm-openai:v0.32.0 \
  --model meta-llama/Llama-3.3-70B-Instruct \
  --tensor-parallel-size 4 \
  --max-model-len 16384 \
  --swap-space 16 \
  --disable-log-requests \
  --speculative-model meta-llama/Llama-3.2-1B-Instruct \
  --num-speculative-tokens 5 \
  --speculative-draft-tensor-parallel-size 1 \
  --use-v2-block-manager
