#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

if [[ -f .env ]]; then
    set -a
    # shellcheck disable=SC1091
    source .env
    set +a
fi

MODEL="${MODEL:-Qwen/Qwen3-8B}"
TP="${TP:-1}"
PORT="${PORT:-8000}"
MAX_LEN="${MAX_LEN:-16384}"
MAX_SEQS="${MAX_SEQS:-96}"
GPU_MEM="${GPU_MEM:-0.92}"
NUM_SPEC="${NUM_SPEC:-0}"
PIDFILE=/tmp/vllm-$PORT.pid
ACTION=start

usage() {
    cat <<EOF
Usage: $(basename "$0") [options] [start|stop|status]

Options:
  -m, --model NAME        model to serve        (default: $MODEL)
  -t, --tp N              tensor parallel size  (default: $TP)
  -l, --max-len N         context length        (default: $MAX_LEN)
      --no-spec           no speculative decoding
  -h, --help

Example:
  $(basename "$0") -m meta-llama/Llama-3.1-8B-Instruct -t 1 --no-spec start
EOF
}

while [[ $# -gt 0 ]]; do
    case "$1" in
        -m|--model)   MODEL="$2"; shift 2 ;;
        -t|--tp)      TP="$2"; shift 2 ;;
        -l|--max-len) MAX_LEN="$2"; shift 2 ;;
        --no-spec)    NUM_SPEC=0; shift ;;
        -h|--help)    usage; exit 0 ;;
        start|stop|status) ACTION="$1"; shift ;;
        *) echo "unknown option: $1" >&2; usage; exit 1 ;;
    esac
done

log() { printf '[%s] %s\n' "$(date '+%F %T')" "$*"; }

is_up() { curl -sf "http://127.0.0.1:${PORT}/health" >/dev/null; }

start_server() {
    local extra=()
    if (( NUM_SPEC > 0 )); then
        extra+=(--speculative-config "$(printf '{"method":"eagle3","model":"%s","num_speculative_tokens":%d}' "$DRAFT" "$NUM_SPEC")")
    fi
    case "$MODEL" in
        *Qwen3*)  extra+=(--reasoning-parser qwen3 --tool-call-parser hermes --enable-auto-tool-choice) ;;
        *Llama-3*) extra+=(--tool-call-parser llama3_json --enable-auto-tool-choice) ;;
    esac
    log "starting $MODEL on port $PORT"
    nohup vllm serve "$MODEL" \
        --host 0.0.0.0 \
        --port "$PORT" \
        --tensor-parallel-size "$TP" \
        --max-model-len "$MAX_LEN" \
        --max-num-seqs "$MAX_SEQS" \
        --gpu-memory-utilization "$GPU_MEM" \
        "${extra[@]}" \
        >> "logs/vllm-$PORT.log" 2>&1 &
    echo $! > "$PIDFILE"
    until is_up; do sleep 5; done
    log "up"
}

stop_server() { kill "$(cat "$PIDFILE")" && rm -f "$PIDFILE"; }

case "$ACTION" in
    start)  start_server ;;
    stop)   stop_server ;;
    status) is_up && log "up" || log "down" ;;
esac
