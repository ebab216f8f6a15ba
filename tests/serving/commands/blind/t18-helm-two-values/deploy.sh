#!/bin/sh
set -e
helm repo add vllm https://vllm-project.github.io/production-stack
helm upgrade --install llm vllm/vllm-stack \
  --namespace llm --create-namespace \
  -f values.yaml \
  -f values-prod.yaml \
  --wait --timeout 30m
