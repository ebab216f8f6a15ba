#!/bin/sh
# SGLang on an 8xH200 node
docker run --gpus all --shm-size 32g --ipc=host --network=host \
  -v /data/hf:/root/.cache/huggingface \
  --env "HF_TOKEN=${HF_TOKEN}" \
  lmsysorg/sglang:v0.5.6.post2 \
  python3 -m sglang.launch_server \
    --model-path deepseek-ai/DeepSeek-V3.1-Terminus \
    --served-model-name deepseek-v3.1 \
    --host 0.0.0.0 --port 30000 \
    --tp 8 \
    --trust-remote-code \
    --context-length 65536 \
    --max-running-requests 128 \
    --mem-fraction-static 0.85 \
    --kv-cache-dtype fp8_e4m3 \
    --reasoning-parser deepseek-v3 \
    --tool-call-parser deepseekv31 \
    --speculative-algorithm EAGLE \
    --speculative-num-steps 3 \
    --speculative-eagle-topk 1 \
    --speculative-num-draft-tokens 4
