#!/bin/bash
# Gemma 4 on Cloud Run (RTX PRO 6000)
export PROJECT_ID=my-llm-project
export REGION=us-central1
SERVICE=gemma4

gcloud beta run deploy $SERVICE \
  --image="us-docker.pkg.dev/vertex-ai/vertex-vision-model-garden-dockers/pytorch-vllm-serve:gemma4" \
  --project=$PROJECT_ID \
  --region=$REGION \
  --execution-environment=gen2 \
  --no-allow-unauthenticated \
  --cpu=20 \
  --memory=80Gi \
  --gpu=1 \
  --gpu-type=nvidia-rtx-pro-6000 \
  --no-gpu-zonal-redundancy \
  --no-cpu-throttling \
  --max-instances=3 \
  --concurrency=64 \
  --timeout=600 \
  --set-secrets="HF_TOKEN=hf-token:latest" \
  --startup-probe="tcpSocket.port=8080,initialDelaySeconds=240,failureThreshold=1,timeoutSeconds=240,periodSeconds=240" \
  --command="vllm" \
  --args="serve,google/gemma-4-31B-it,--enable-chunked-prefill,--enable-prefix-caching,--generation-config=auto,--enable-auto-tool-choice,--tool-call-parser=gemma4,--reasoning-parser=gemma4,--dtype=bfloat16,--quantization=fp8,--kv-cache-dtype=fp8,--max-model-len=65536,--max-num-seqs=64,--gpu-memory-utilization=0.95,--tensor-parallel-size=1,--port=8080,--host=0.0.0.0,--speculative-config.method=mtp,--speculative-config.model=google/gemma-4-31B-it-assistant,--speculative-config.num_speculative_tokens=2"
