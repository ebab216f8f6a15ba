# https://docs.vllm.ai/projects/recipes -> DeepSeek-V3 (R1) Usage Guide, 8xH200, TP8+EP
# DP variant, keep for later:
#   vllm serve deepseek-ai/DeepSeek-R1-0528 --trust-remote-code --data-parallel-size 8 --enable-expert-parallel

docker run -d --name r1-0528 \
  --runtime nvidia --gpus all \
  --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 \
  -v "$HOME/.cache/huggingface:/root/.cache/huggingface" \
  -e "HF_TOKEN=$HF_TOKEN" \
  -e VLLM_USE_DEEP_GEMM=1 \
  -p 8000:8000 \
  vllm/vllm-openai:v0.32.0 deepseek-ai/DeepSeek-R1-0528 \
    --trust-remote-code \
    --tensor-parallel-size 8 \
    --enable-expert-parallel \
    --max-model-len 65536 \
    --gpu-memory-utilization 0.92 \
    --reasoning-parser deepseek_r1 \
    --speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'

docker logs -f r1-0528
