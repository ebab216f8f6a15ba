#!/bin/bash
# gpt-oss-120b with EAGLE3, 4x H100
docker rm -f sglang-gptoss 2>/dev/null

docker run -d --name sglang-gptoss \
  --gpus '"device=0,1,2,3"' \
  --shm-size 32g --ipc=host \
  -p 30000:30000 \
  -v ~/.cache/huggingface:/root/.cache/huggingface \
  -e HF_TOKEN="$HF_TOKEN" \
  -e SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 \
  lmsysorg/sglang:v0.5.6 \
  python3 -m sglang.launch_server \
    --model-path openai/gpt-oss-120b \
    --served-model-name gpt-oss-120b \
    --tp 4 \
    --context-length 98304 \
    --max-running-requests 64 \
    --mem-fraction-static 0.85 \
    --cuda-graph-max-bs 64 \
    --reasoning-parser gpt-oss \
    --tool-call-parser gpt-oss \
    --attention-backend fa3 \
    --dtype bfloat16 \
    --speculative-algorithm EAGLE3 \
    --speculative-draft-model-path lmsys/EAGLE3-gpt-oss-120b-bf16 \
    --speculative-num-steps 5 \
    --speculative-eagle-topk 4 \
    --speculative-num-draft-tokens 8 \
    --host 0.0.0.0 --port 30000

docker logs -f sglang-gptoss
