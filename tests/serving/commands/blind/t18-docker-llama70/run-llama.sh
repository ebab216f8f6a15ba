#!/bin/bash
docker rm -f llama70b 2>/dev/null || true

docker run -d --name llama70b \
  --restart unless-stopped \
  --gpus '"device=0,1,2,3"' \
  --ipc=host \
  --shm-size 16g \
  -v /srv/hf-cache:/root/.cache/huggingface \
  -e HUGGING_FACE_HUB_TOKEN=$(cat /root/.hf_token) \
  -e VLLM_ALLREDUCE_USE_SYMM_MEM=0 \
  -p 8000:8000 \
  vllm/vllm-openai:v0.10.2 \
  --model RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic \
  --served-model-name llama-3.3-70b gpt-4o \
  --tensor-parallel-size 4 \
  --max-model-len 32768 \
  --max-num-seqs 64 \
  --kv-cache-dtype fp8 \
  --enable-prefix-caching \
  --enable-auto-tool-choice --tool-call-parser llama3_json \
  --speculative-config '{"method":"eagle3","model":"yuhuili/EAGLE3-LLaMA3.3-Instruct-70B","num_speculative_tokens":3,"draft_tensor_parallel_size":1}'

docker logs -f llama70b
