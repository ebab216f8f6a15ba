docker run --runtime nvidia --gpus '"device=0,1"' \
    -v ~/.cache/huggingface:/root/.cache/huggingface \
    -p 8000:8000 --ipc=host \
    vllm/vllm-openai:v0.7.3 \
    --model deepseek-ai/DeepSeek-R1-Distill-Qwen-32B \
    --enable-reasoning --reasoning-parser deepseek_r1 \
    -tp 2 \
    --max-model-len 24000 \
    --disable-log-requests
