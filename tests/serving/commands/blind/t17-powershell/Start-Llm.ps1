#Requires -Version 5.1
# Windows PowerShell 5.1: inner quotes for docker.exe need \" even inside '...'
[CmdletBinding()]
param(
    [string] $Model = 'Qwen/Qwen2.5-Coder-14B-Instruct-AWQ',
    [int]    $ContextLength = 24576,
    [double] $GpuShare = 0.85,
    [int]    $Port = 8000,
    [switch] $NoSpeculation
)

$ErrorActionPreference = 'Stop'
$Image = 'vllm/vllm-openai:v0.17.1'
$Cache = Join-Path $env:USERPROFILE '.cache\huggingface'

$engineArgs = @(
    '--model', $Model,
    '--quantization', 'awq_marlin',
    '--dtype', 'half',
    '--max-model-len', $ContextLength,
    '--max-num-seqs', 8,
    '--gpu-memory-utilization', $GpuShare
)
if (-not $NoSpeculation) {
    $engineArgs += '--speculative-config'
    $engineArgs += '{\"method\": \"ngram\", \"num_speculative_tokens\": 6, \"prompt_lookup_min\": 2, \"prompt_lookup_max\": 5}'
}

<#
  old start, before the AWQ checkpoint:
  docker run --gpus all vllm/vllm-openai:v0.8.5 --model Qwen/Qwen2.5-Coder-7B-Instruct --max-model-len 8192
#>
docker rm -f coder 2>$null | Out-Null
docker run -d --name coder --gpus all --ipc=host `
    -p "${Port}:8000" `
    -v "${Cache}:/root/.cache/huggingface" `
    -e "HF_TOKEN=$env:HF_TOKEN" `
    -e VLLM_NO_USAGE_STATS=1 `
    $Image @engineArgs

Write-Host "http://localhost:$Port/v1"
