#!/bin/sh
# usage: ./run.sh [more vllm options]
cd "$(dirname "$0")" || exit 1
. ./venv/bin/activate
export VLLM_ALLREDUCE_USE_SYMM_MEM=0
exec vllm serve --config serve.yaml --max-model-len 100k --max_num_seqs=48 -O2 "$@"
