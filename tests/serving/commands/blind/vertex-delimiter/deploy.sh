#!/usr/bin/env bash
# Upload, then deploy. Machine has 8 GPUs, two replicas fit side by side later.
gcloud ai models upload \
  --project=acme-genai-prod --region=us-central1 \
  --display-name=r1-distill-70b-eagle3 \
  --container-image-uri=us-docker.pkg.dev/acme-genai-prod/mirror/vllm-openai:v0.10.2 \
  --container-command=python3,-m,vllm.entrypoints.openai.api_server \
  --container-args='^;^--model=gs://acme-models/DeepSeek-R1-Distill-Llama-70B;--served-model-name=r1-70b;--tensor-parallel-size=4;--max-model-len=65536;--max-num-seqs=64;--gpu-memory-utilization=0.93;--speculative-config={"method":"eagle3","model":"gs://acme-models/eagle3-r1-70b","num_speculative_tokens":3};--enable-prefix-caching;--host=0.0.0.0;--port=8080' \
  --container-env-vars=VLLM_ATTENTION_BACKEND=FLASHINFER,HF_HUB_OFFLINE=1 \
  --container-ports=8080 \
  --container-health-route=/health --container-predict-route=/v1/chat/completions

gcloud ai endpoints deploy-model "$ENDPOINT_ID" \
  --region=us-central1 --model="$MODEL_ID" --display-name=r1-70b \
  --machine-type=a3-highgpu-8g --accelerator=type=nvidia-h100-80gb,count=8 \
  --min-replica-count=1 --max-replica-count=3
