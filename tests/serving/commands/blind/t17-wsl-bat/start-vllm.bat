@echo off
setlocal
title vLLM (WSL)

set MODEL=Qwen/Qwen3-8B-AWQ
rem set MODEL=Qwen/Qwen3-14B-AWQ
set "CTX=16384"
if not defined GPU_UTIL set GPU_UTIL=0.80
:: set CTX=40960

echo Starting %MODEL% with %CTX% tokens of context ...
wsl -d Ubuntu-24.04 -u dev -- bash -lc "source ~/venvs/vllm/bin/activate && VLLM_WORKER_MULTIPROC_METHOD=spawn vllm serve %MODEL% --max-model-len %CTX% --max-num-seqs 4 --gpu-memory-utilization %GPU_UTIL% --speculative-config.method=suffix --speculative-config.num_speculative_tokens=16 --reasoning-parser qwen3 --port 8001"

if errorlevel 1 (
  echo vLLM stopped with an error
  pause
)
endlocal
