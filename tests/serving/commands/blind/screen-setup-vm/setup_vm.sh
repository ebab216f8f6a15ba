#!/bin/bash
# ============================================================
# VM setup - run on EACH H100 VM after creation
# Usage: bash setup_vm.sh [1|2]
#   1 = GPU-1 (has SSD-1)      2 = GPU-2 (has SSD-2)
# ============================================================

set -e

VM_ID=${1:-1}
echo "================================================"
echo "  Setting up GPU-$VM_ID VM"
echo "================================================"

# ------------------------------------------------------------
# Step 1: mount SSD
# ------------------------------------------------------------
if [ "$VM_ID" = "1" ]; then
    sudo mkdir -p /mnt/ssd1
    sudo mount /dev/disk/by-id/google-ssd-gpu1 /mnt/ssd1
    WORK_DIR="/mnt/ssd1"
else
    sudo mkdir -p /mnt/ssd2
    sudo mount /dev/disk/by-id/google-ssd-gpu2 /mnt/ssd2
    WORK_DIR="/mnt/ssd2"
fi
mkdir -p $WORK_DIR/models $WORK_DIR/logs

# ------------------------------------------------------------
# Step 2: dependencies
# ------------------------------------------------------------
pip install --upgrade pip
pip install vllm==0.10.2 transformers accelerate huggingface_hub

# ------------------------------------------------------------
# Step 3: download
# ------------------------------------------------------------
echo "[3/4] Downloading model..."
python3 -c "
from huggingface_hub import snapshot_download
snapshot_download(
    'deepseek-ai/DeepSeek-R1-0528-Qwen3-8B',
    local_dir='$WORK_DIR/models/R1-0528-Qwen3-8B',
    max_workers=4
)
print('done')
"

# ------------------------------------------------------------
# Step 4: start the server
# ------------------------------------------------------------
if [ "$VM_ID" = "1" ]; then
    PORT=8000
else
    PORT=8001
fi

screen -dmS vllm bash -c "
    python3 -m vllm.entrypoints.openai.api_server \
        --model $WORK_DIR/models/R1-0528-Qwen3-8B \
        --served-model-name r1-8b \
        --dtype bfloat16 \
        --max-model-len 32768 \
        --max-num-seqs 64 \
        --gpu-memory-utilization 0.90 \
        --reasoning-parser deepseek_r1 \
        --port $PORT \
        2>&1 | tee $WORK_DIR/logs/vllm.log
"

echo "Waiting for vLLM to start (this takes ~2-3 minutes)..."
for i in $(seq 1 60); do
    if curl -s http://localhost:$PORT/health > /dev/null 2>&1; then
        echo "vLLM server running on port $PORT"
        break
    fi
    sleep 5
    echo "  Waiting... ($((i*5))s)"
done
