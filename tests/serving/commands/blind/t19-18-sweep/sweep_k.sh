#!/usr/bin/env bash
# accepted length / tps against K, Qwen3-32B + EAGLE3
set -uo pipefail
export CUDA_VISIBLE_DEVICES=0,1
MODEL=Qwen/Qwen3-32B
DRAFT=RedHatAI/Qwen3-32B-speculator.eagle3
PORT=8000
OUT=results/$(date +%m%d)
mkdir -p "$OUT"

wait_up() {
    for _ in $(seq 1 240); do
        curl -sf "http://127.0.0.1:$PORT/health" > /dev/null && return 0
        kill -0 "$1" 2>/dev/null || return 1
        sleep 5
    done
    return 1
}

for K in 1 3 5 7; do
    echo "=== K=$K"
    vllm serve "$MODEL" \
        --port $PORT \
        --tensor-parallel-size 2 \
        --max-model-len 16384 \
        --max-num-seqs 64 \
        --no-enable-prefix-caching \
        --speculative-config "{\"method\": \"eagle3\", \"model\": \"$DRAFT\", \"num_speculative_tokens\": $K}" \
        > "$OUT/server-k$K.log" 2>&1 &
    PID=$!
    if wait_up $PID; then
        for C in 1 8 32; do
            vllm bench serve --model "$MODEL" --port $PORT \
                --dataset-name hf --dataset-path philschmid/mt-bench \
                --num-prompts 80 --max-concurrency $C \
                --save-result --result-filename "$OUT/k$K-c$C.json"
        done
    else
        echo "K=$K did not start, see $OUT/server-k$K.log"
    fi
    kill $PID; wait $PID 2>/dev/null
    sleep 10
done
