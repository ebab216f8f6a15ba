uv venv --python 3.12 && source .venv/bin/activate
uv pip install "vllm==0.20.1" --torch-backend=auto

vllm serve Qwen/Qwen3-8B \
  --speculative-config '{"method": "dflash", "model": "z-lab/Qwen3-8B-DFlash-b16", "num_speculative_tokens": 15}' \
  --attention-backend flash_attn \
  --max-num-batched-tokens 32768 \
  --max-model-len 16384
