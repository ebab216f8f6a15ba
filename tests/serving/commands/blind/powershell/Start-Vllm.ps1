#Requires -Version 5.1
param([int]$Port = 8000)
$Model = "Qwen/Qwen3-14B-AWQ"
$Image = "vllm/vllm-openai:v0.9.2"
<#  two-GPU workstation, not this one
docker run --gpus all $Image --model Qwen/Qwen3-14B-FP8 --tensor-parallel-size 2 --max-model-len 40960
#>
docker run -d --name qwen --gpus all --ipc=host `
  -p "${Port}:8000" `
  -e HF_TOKEN=$env:HF_TOKEN `
  -e VLLM_USE_V1=1 `
  -v "$env:USERPROFILE\.cache\huggingface:/root/.cache/huggingface" `
  $Image `
  --model $Model `
  --quantization awq_marlin --dtype half `
  --max-model-len 16384 --max-num-seqs 32 `
  --gpu-memory-utilization 0.88 `
  --enable-prefix-caching `
  --speculative-config '{\"method\": \"ngram\", \"num_speculative_tokens\": 4, \"prompt_lookup_max\": 3}'
