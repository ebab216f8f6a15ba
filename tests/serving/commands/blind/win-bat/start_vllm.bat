@echo off
setlocal
rem local coding assistant, RTX 4090
set MODEL=Qwen/Qwen3-14B-AWQ
set CTX=16384
if "%~1"=="long" set CTX=32768
rem set UTIL=0.95
set UTIL=0.85

docker stop vllm >nul 2>&1
docker run --rm -d --name vllm --gpus all ^
  -v "%USERPROFILE%\.cache\huggingface:/root/.cache/huggingface" ^
  -e VLLM_ATTENTION_BACKEND=FLASH_ATTN ^
  -p 8000:8000 --ipc=host ^
  vllm/vllm-openai:v0.9.1 ^
  --model %MODEL% ^
  --quantization awq_marlin --dtype half ^
  --max-model-len %CTX% --gpu-memory-utilization %UTIL% ^
  --max-num-seqs 8 ^
  --speculative-config "{\"method\":\"ngram\",\"num_speculative_tokens\":4,\"prompt_lookup_max\":4,\"prompt_lookup_min\":2}"
if errorlevel 1 pause
start http://localhost:3000
