#!/bin/bash
# copied over from the 0.6 days, only the tag was bumped
docker stop qwen72b 2>/dev/null; docker rm qwen72b 2>/dev/null

docker run -d --name qwen72b \
  --runtime nvidia --gpus all \
  -v /data/models:/models \
  -p 8000:8000 \
  --ipc=host \
  vllm/vllm-openai:v0.32.0 \
  --model /models/Qwen2.5-72B-Instruct-GPTQ-Int4 \
  --served-model-name qwen2.5-72b \
  --tensor-parallel-size 2 \
  --max-model-len 16384 \
  --gpu-memory-utilization 0.95 \
  --swap-space 16 \
  --disable-log-requests \
  --enable-chunked-prefill

sleep 120
curl -s localhost:8000/v1/models | jq -r '.data[].id'
