# 4x H100 SXM, template "vLLM" from Vast
vastai create instance 21734455 \
  --image vastai/vllm:v0.11.0-cuda-12.8-py312 --disk 400 --ssh --direct \
  --env '-p 1111:1111 -p 8000:8000 -e OPEN_BUTTON_PORT=1111 -e VLLM_MODEL=deepseek-ai/DeepSeek-R1-Distill-Llama-70B -e USE_ALL_GPUS=true -e VLLM_ARGS="--max-model-len 32768 --max-num-seqs 32 --enforce-eager --reasoning-parser deepseek_r1 --download-dir /workspace/models --host 127.0.0.1 --port 18000" -e RAY_ARGS="--head --port 6379 --dashboard-host 127.0.0.1 --dashboard-port 28265"' \
  --onstart-cmd 'entrypoint.sh'
