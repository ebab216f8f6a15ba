#!/bin/bash
export VLLM_USE_DEEP_GEMM=1
docker run --rm --gpus all --ipc=host --network host \
  -v /data/models:/models \
  -e VLLM_USE_DEEP_GEMM \
  vllm/vllm-openai:v0.31.0 \
  /models/Kimi-K2-Instruct-0905 \
  --tensor-parallel-size 16 -n 2 -r 0 --master-addr 10.0.0.4 \
  --trust-remote-code --max-model-len 65536 --max-num-seqs 64 \
  --gpu-memory-utilization 0.92 \
  --spec-method eagle3 --spec-model /models/kimi-k2-eagle3 --spec-tokens 3
