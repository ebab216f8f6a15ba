#!/bin/bash
# DeepSeek-R1 on one 8xH200 box with SGLang, MTP on (docs.sglang.io, DeepSeek usage)
set -e
MODEL=${MODEL:-deepseek-ai/DeepSeek-R1-0528}

docker run --gpus all --shm-size 32g --ipc=host --network=host --privileged \
    -v /raid/hf:/root/.cache/huggingface \
    --env "HF_TOKEN=$HF_TOKEN" \
    -e SGLANG_ENABLE_SPEC_V2=True \
    lmsysorg/sglang:v0.5.6 \
    python3 -m sglang.launch_server \
        --model-path "$MODEL" \
        --tp 8 --trust-remote-code \
        --context-length 65536 \
        --max-running-requests 64 \
        --mem-fraction-static 0.85 \
        --kv-cache-dtype fp8_e4m3 \
        --speculative-algorithm EAGLE \
        --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 \
        --reasoning-parser deepseek-r1 \
        --host 0.0.0.0 --port 30000
