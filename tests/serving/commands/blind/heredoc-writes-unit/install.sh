#!/usr/bin/env bash
# Installs vLLM as a service on the 4x L40S boxes
set -euo pipefail

[[ $EUID -eq 0 ]] || { echo "run as root" >&2; exit 1; }

VLLM_USER=vllm
VLLM_DIR=/opt/vllm
VLLM_VERSION="${VLLM_VERSION:-0.10.1.1}"
MODEL_ID="${MODEL_ID:-Qwen/Qwen2.5-72B-Instruct-AWQ}"
SERVED_NAME="$(basename "$MODEL_ID" | tr '[:upper:]' '[:lower:]')"
NUM_GPUS="${NUM_GPUS:-4}"
MAX_LEN=$((16 * 1024))
PORT=8000

id -u "$VLLM_USER" &>/dev/null || useradd --system --create-home --home-dir "$VLLM_DIR" "$VLLM_USER"

sudo -u "$VLLM_USER" python3 -m venv "$VLLM_DIR/venv"
sudo -u "$VLLM_USER" "$VLLM_DIR/venv/bin/pip" install -U pip "vllm==$VLLM_VERSION"
sudo -u "$VLLM_USER" "$VLLM_DIR/venv/bin/huggingface-cli" download "$MODEL_ID"

cat > /etc/default/vllm <<'EOF'
VLLM_LOGGING_LEVEL=INFO
HF_HUB_OFFLINE=1
EXTRA_ARGS=--enable-auto-tool-choice --tool-call-parser hermes
EOF

cat > /etc/systemd/system/vllm.service <<EOF
[Unit]
Description=vLLM server ($MODEL_ID)
After=network-online.target

[Service]
Type=simple
User=$VLLM_USER
WorkingDirectory=$VLLM_DIR
EnvironmentFile=/etc/default/vllm
ExecStart=$VLLM_DIR/venv/bin/vllm serve $MODEL_ID \\
    --served-model-name $SERVED_NAME \\
    --host 0.0.0.0 --port $PORT \\
    --tensor-parallel-size $NUM_GPUS \\
    --max-model-len $MAX_LEN \\
    --max-num-seqs 40 \\
    --quantization awq_marlin \\
    --speculative-config '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}' \\
    \$EXTRA_ARGS
ExecStop=/bin/kill -INT \$MAINPID
Restart=on-failure
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
EOF

systemctl daemon-reload
systemctl enable --now vllm
echo "Done. Test:  curl http://localhost:$PORT/v1/models"
