#!/bin/bash
pip install "arctic-inference[vllm]"
export ARCTIC_INFERENCE_ENABLED=1
python -m vllm.entrypoints.openai.api_server \
    --model meta-llama/Llama-3.3-70B-Instruct \
    --quantization "fp8" \
    --tensor-parallel-size 2 \
    --ulysses-sequence-parallel-size 4 \
    --enable-shift-parallel \
    --max-model-len 16384 \
    --speculative-config '{
        "method": "arctic",
        "model":"Snowflake/Arctic-LSTM-Speculator-Llama-3.3-70B-Instruct",
        "num_speculative_tokens": 3,
        "enable_suffix_decoding": true,
        "disable_by_batch_size": 64
    }'
