#!/bin/bash
# llama 8b with prompt lookup, for the RAG team
export CUDA_VISIBLE_DEVICES=0
export HF_HOME=/mnt/models/hf

vllm serve meta-llama/Llama-3.1-8B-Instruct \
  --port 8000 \
  --max-model-len 16384 \
  --max-num-seqs 64 \
  --gpu-memory-utilization 0.9 \
  --enable-prefix-caching \
  --speculative-config {"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4}
