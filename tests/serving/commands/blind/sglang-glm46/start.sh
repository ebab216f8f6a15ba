#!/bin/bash
# GLM-4.6 on 8xH200 (moved from vllm/vllm-openai:v0.11.0 in October)
docker run -d --gpus all --shm-size 32g --ipc=host \
  --name glm46 -p 30000:30000 \
  -v /data/hf:/root/.cache/huggingface \
  lmsysorg/sglang:v0.5.4 \
  python3 -m sglang.launch_server \
    --model-path zai-org/GLM-4.6-FP8 \
    --tp-size 8 \
    --tool-call-parser glm45 \
    --reasoning-parser glm45 \
    --speculative-algorithm EAGLE \
    --speculative-num-steps 3 \
    --speculative-eagle-topk 1 \
    --speculative-num-draft-tokens 4 \
    --mem-fraction-static 0.9 \
    --served-model-name glm-4.6-fp8 \
    --host 0.0.0.0 --port 30000
