#!/usr/bin/env bash
# DeepSeek-R1 distill for the analytics team, 4x A100-80G (box: gpu03)
# usage: ./run_r1_32b.sh           (needs HF_TOKEN only on first pull)
set -euo pipefail

MODEL_ID="deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"
SERVED_NAME=r1-32b
GPUS='"device=0,1,2,3"'
PORT=8100
CACHE="${HF_HOME:-$HOME/.cache/huggingface}"
OLD_IMAGE=vllm/vllm-openai:v0.8.5     # roll back to this one if 0.11 misbehaves
IMAGE=vllm/vllm-openai:v0.11.0
NAME=vllm-r1
MAX_LEN=32768
#MAX_LEN=131072   # OOM with 64 seqs

if docker ps -a --format '{{.Names}}' | grep -qx "$NAME"; then
    echo "removing old container $NAME"
    docker rm -f "$NAME" >/dev/null
fi

docker run -d \
    --name "$NAME" \
    --gpus "$GPUS" \
    --ipc=host --shm-size 16g \
    --restart unless-stopped \
    -p ${PORT}:8000 \
    -v "$CACHE":/root/.cache/huggingface \
    -v "$PWD/logs":/logs \
    --env "HUGGING_FACE_HUB_TOKEN=${HF_TOKEN:-}" \
    -e NCCL_P2P_DISABLE=1 \
    -e VLLM_LOGGING_LEVEL=INFO \
    "$IMAGE" \
    --model "$MODEL_ID" \
    --served-model-name "$SERVED_NAME" \
    --tensor-parallel-size 4 \
    --dtype bfloat16 \
    --max-model-len "$MAX_LEN" \
    --max-num-seqs 64 \
    --gpu-memory-utilization 0.92 \
    --reasoning-parser deepseek_r1

echo -n "waiting for http://localhost:${PORT}/health "
for i in $(seq 1 180); do
    if curl -sf "http://localhost:${PORT}/health" >/dev/null; then echo " up after $((i*5))s"; break; fi
    sleep 5; echo -n .
    [ "$i" -eq 180 ] && { docker logs --tail 50 "$NAME"; exit 1; }
done

curl -s "http://localhost:${PORT}/v1/chat/completions" \
    -H 'Content-Type: application/json' \
    -d '{"model": "r1-32b", "max_tokens": 256, "messages": [{"role": "user", "content": "9.11 or 9.8, which is larger?"}]}' | head -c 600
echo
# throughput check
# docker exec "$NAME" vllm bench serve --model "$MODEL_ID" --served-model-name r1-32b --dataset-name random --num-prompts 200 --max-concurrency 32
