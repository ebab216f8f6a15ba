#!/usr/bin/env bash
set -e
mkdir -p /etc/vllm
cat > /etc/vllm/r1.yaml <<'EOF'
# shared by the 4-GPU B200 and the 8-GPU H200 boxes
model: deepseek-ai/DeepSeek-R1
tensor-parallel-size: 4
max-model-len: 32768
max-num-seqs: 256
gpu-memory-utilization: 0.85
reasoning-parser: deepseek_r1
enable-chunked-prefill: true
speculative-config: '{"method": "deepseek_mtp", "num_speculative_tokens": 1}'
uvicorn-log-level: warning
EOF

# H200: all eight
exec vllm serve --config /etc/vllm/r1.yaml --tensor-parallel-size 8 --gpu-memory-utilization=0.95 --port 9000
