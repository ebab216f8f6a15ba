#!/bin/bash
# LLM for the support bot
model=meta-llama/Llama-3.3-70B-Instruct
volume=/srv/tgi-data

docker run -d --name llm --gpus all --shm-size 2g -p 8080:80 \
  -e HF_TOKEN=$HF_TOKEN \
  -v $volume:/data \
  ghcr.io/huggingface/text-generation-inference:3.3.5 \
  --model-id $model \
  --num-shard 4 \
  --quantize fp8 \
  --speculate 3 \
  --max-input-tokens 30000 \
  --max-total-tokens 32768 \
  --max-concurrent-requests 256
