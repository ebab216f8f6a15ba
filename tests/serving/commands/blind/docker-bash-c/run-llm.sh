#!/bin/sh
# llama 3.3, box a100-03.  Ask Jonas before touching.
docker rm -f llm 2>/dev/null || true
docker run -d --name llm --restart unless-stopped \
  --gpus '"device=0,1,2,3"' --ipc=host -p 8000:8000 \
  -v /data/models:/models -v /data/cache/vllm:/root/.cache/vllm \
  -e HF_HUB_OFFLINE=1 -e VLLM_USE_FLASHINFER_SAMPLER=1 -e TZ=Europe/Berlin \
  --entrypoint bash vllm/vllm-openai:v0.10.2 \
  -c "pip install -q --no-deps /models/wheels/ourparser-0.3-py3-none-any.whl && export VLLM_FLASH_ATTN_VERSION=3 && exec vllm serve /models/Llama-3.3-70B-Instruct-FP8-dynamic --tensor-parallel-size 4 --max-model-len 65536 --kv-cache-dtype fp8 --max-num-seqs 128 --gpu-memory-utilization=.88 --enable-prefix-caching --served-model-name llama-3.3-70b --speculative-config '{\"method\":\"eagle3\",\"model\":\"/models/EAGLE3-LLaMA3.3-Instruct-70B\",\"num_speculative_tokens\":4,\"draft_tensor_parallel_size\":1}' --max-model-len 32768"
docker logs -f llm
