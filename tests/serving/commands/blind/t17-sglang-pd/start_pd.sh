#!/usr/bin/env bash
# one prefill, one decode worker on an 8 GPU node, router in front
set -e
MODEL=Qwen/Qwen3-235B-A22B-Instruct-2507-FP8
DRAFT=lmsys/SGLang-EAGLE3-Qwen3-235B-A22B-Instruct-2507-SpecForge-Meituan
LOG=${LOG:-./log}
mkdir -p "$LOG"

COMMON=(--model-path "$MODEL" --trust-remote-code --context-length 65536
        --host 127.0.0.1 --disaggregation-transfer-backend nixl)

CUDA_VISIBLE_DEVICES=0,1,2,3 python3 -m sglang.launch_server "${COMMON[@]}" \
    --disaggregation-mode prefill --disaggregation-bootstrap-port 8998 \
    --tp 4 --port 30000 \
    --chunked-prefill-size 16384 --disable-cuda-graph \
    --mem-fraction-static 0.85 \
    > "$LOG/prefill.log" 2>&1 &
P=$!

CUDA_VISIBLE_DEVICES=4,5,6,7 python3 -m sglang.launch_server "${COMMON[@]}" \
    --disaggregation-mode decode \
    --tp 4 --port 30001 \
    --max-running-requests 256 --cuda-graph-max-bs 256 \
    --mem-fraction-static 0.80 \
    --speculative-algorithm EAGLE3 --speculative-draft-model-path "$DRAFT" \
    --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 \
    > "$LOG/decode.log" 2>&1 &
D=$!

trap 'kill $P $D' EXIT
for p in 30000 30001; do until curl -sf localhost:$p/health; do sleep 5; done; done

python3 -m sglang_router.launch_router --pd-disaggregation \
    --prefill http://127.0.0.1:30000 8998 \
    --decode http://127.0.0.1:30001 \
    --host 0.0.0.0 --port 8000
