export NIM_LLM_MODEL_FREE_IMAGE="nvcr.io/nim/nvidia/vllm-model-free-nim:2.0.11"
docker run --rm --gpus all --shm-size=32g \
  -e NGC_API_KEY \
  -e NIM_MODEL_PATH=hf://Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 \
  -e NIM_MAX_MODEL_LEN=131072 \
  -e NIM_PASSTHROUGH_ARGS="--tensor-parallel-size 8 --max-num-seqs 64 --kv-cache-dtype fp8" \
  -p 8000:8000 \
  $NIM_LLM_MODEL_FREE_IMAGE \
  --tensor-parallel-size 4 --max-model-len 65536
