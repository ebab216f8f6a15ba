#!/usr/bin/env bash
set -euo pipefail

PROJECT=acme-llm
REGION=${REGION:-europe-west4}
MODEL=${1:-google/gemma-3-12b-it}

gcloud run deploy gemma-vllm \
  --project="$PROJECT" --region="$REGION" \
  --image=vllm/vllm-openai:v0.32.0 \
  --gpu=1 --gpu-type=nvidia-rtx-pro-6000 --no-gpu-zonal-redundancy \
  --cpu=20 --memory=80Gi \
  --port=8000 --concurrency=256 --max-instances=3 --timeout=3600 \
  --set-secrets=HF_TOKEN=hf-token:latest \
  --set-env-vars=^##^HF_HOME=/tmp/hf##VLLM_LOGGING_LEVEL=WARNING \
  --args=^@^--model="$MODEL"@--max-model-len=16384@--max-num-seqs=40@--quantization=fp8@--gpu-memory-utilization=0.9@--limit-mm-per-prompt='{"image":2,"video":0}'@--speculative-config='{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":3}' \
  --startup-probe=tcpSocket.port=8000,initialDelaySeconds=240,failureThreshold=1,timeoutSeconds=240,periodSeconds=240 \
  --no-allow-unauthenticated

URL=$(gcloud run services describe gemma-vllm --region="$REGION" --format='value(status.url)')
curl -s "$URL/v1/models" -H "Authorization: Bearer $(gcloud auth print-identity-token)"
