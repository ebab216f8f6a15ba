#!/bin/bash
# Llama 3.3 70B + 1B draft, node gpu-07
source /opt/venvs/vllm-0.8.5/bin/activate

export HF_HOME=/data/hf
export CUDA_VISIBLE_DEVICES=0,1,2,3
export VLLM_USE_V1=0     # draft model spec decode needs V0
export VLLM_WORKER_MULTIPROC_METHOD=spawn

MODEL=meta-llama/Llama-3.3-70B-Instruct
DRAFT=meta-llama/Llama-3.2-1B-Instruct
SPEC_TOKENS=5
TP=4
PORT=8001
LOG=/var/log/vllm/llama70b.log

ARGS=(
  --served-model-name llama-70b
  --tensor-parallel-size "$TP"
  --dtype bfloat16
  --max-model-len 16384
  --max-num-seqs 32
  --gpu-memory-utilization 0.92
  --disable-log-requests
  --port "$PORT"
)
SPEC="{\"model\": \"$DRAFT\", \"num_speculative_tokens\": $SPEC_TOKENS, \"draft_tensor_parallel_size\": 1}"

mkdir -p "$(dirname "$LOG")"
nohup vllm serve "$MODEL" "${ARGS[@]}" --speculative-config "$SPEC" > "$LOG" 2>&1 &
echo $! > /run/vllm.pid

until curl -sf "http://localhost:${PORT}/health"; do sleep 5; done
echo "up"
