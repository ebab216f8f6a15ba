#!/usr/bin/env bash
# 8k out point of the sweep = our production settings
MODEL=deepseek-ai/DeepSeek-R1-0528
TP=8 ; CONC=64 ; PORT=8888
ISL=1024
OSL=8192
RANDOM_RANGE_RATIO=0.8
MAX_MODEL_LEN=$(( ISL + OSL + 256 ))
SERVER_LOG=$(mktemp /tmp/server-XXXXXX.log)

set -x
vllm serve $MODEL --host 0.0.0.0 --port $PORT \
--trust-remote-code --gpu-memory-utilization 0.9 \
--pipeline-parallel-size 1 --tensor-parallel-size $TP --max-num-seqs $CONC \
--max-num-batched-tokens $(( ISL * 8 )) --max-model-len $MAX_MODEL_LEN \
--enable-chunked-prefill --async-scheduling --no-enable-prefix-caching \
--compilation-config '{"pass_config": {"enable_fi_allreduce_fusion": true}, "custom_ops": ["+rms_norm"], "level": 3}' \
--speculative-config '{"method": "mtp", "num_speculative_tokens": 2}' > $SERVER_LOG 2>&1 &
SERVER_PID=$!
set +x

wait_for_server --port $PORT --pid $SERVER_PID

vllm bench serve --model $MODEL --backend vllm --base-url http://0.0.0.0:$PORT \
--dataset-name random --random-input-len $ISL --random-output-len $OSL --random-range-ratio $RANDOM_RANGE_RATIO \
--num-prompts $(( CONC * 10 )) --max-concurrency $CONC --request-rate inf --ignore-eos \
--tokenizer deepseek-ai/DeepSeek-R1 --seed 7 --save-result
