#!/usr/bin/env bash
# serve_qwen.sh - Qwen3 on the lab machine, with a small Qwen3 as drafter
#
#   ./serve_qwen.sh                       defaults
#   ./serve_qwen.sh -m Qwen/Qwen3-14B -t 1 -d ""     no drafter
#   ./serve_qwen.sh -k 8 -- --seed 7      everything after -- goes to vllm
set -euo pipefail

usage() {
  cat <<USAGE
usage: ${0##*/} [-m model] [-t tp] [-p port] [-d draft] [-k tokens] [-l len] [-e]

  e.g. vllm serve Qwen/Qwen3-8B --tensor-parallel-size 1 is what -m Qwen/Qwen3-8B -t 1 -d "" runs
USAGE
}

MODEL=Qwen/Qwen3-32B
TP=2
PORT=8000
DRAFT=Qwen/Qwen3-0.6B
NTOK=4
LEN=""
EAGER=0

while getopts ":m:t:p:d:k:l:eh" opt; do
  case "$opt" in
    m) MODEL=$OPTARG ;;
    t) TP=$OPTARG ;;
    p) PORT=$OPTARG ;;
    d) DRAFT=$OPTARG ;;
    k) NTOK=$OPTARG ;;
    l) LEN=$OPTARG ;;
    e) EAGER=1 ;;
    h) usage; exit 0 ;;
    :) echo "option -$OPTARG needs a value" >&2; usage >&2; exit 2 ;;
    \?) echo "unknown option -$OPTARG" >&2; usage >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))

if [[ -z "$LEN" ]]; then
  LEN=$((32 * 1024))
fi

cmd=(vllm serve "$MODEL"
     -tp "$TP"
     --port "$PORT"
     --max-model-len "$LEN"
     --gpu-memory-util 0.88
     --enable-prefix-caching)

if [[ -n "$DRAFT" ]]; then
  cmd+=(--speculative-config "$(printf '{"model": "%s", "num_speculative_tokens": %d}' "$DRAFT" "$NTOK")")
fi
if (( EAGER )); then
  cmd+=(--enforce-eager)
fi

printf '+'; printf ' %q' "${cmd[@]}" "$@"; echo
exec "${cmd[@]}" "$@"
