#!/usr/bin/env bash
# DeepSeek-R1-Distill-Qwen-32B on our two A100 80GB, command taken from the model card
export HF_HOME=/data/hf
export CUDA_VISIBLE_DEVICES=0,1

vllm serve deepseek-ai/DeepSeek-R1-Distill-Qwen-32B --tensor-parallel-size 2 --max-model-len 32768 --enforce-eager
