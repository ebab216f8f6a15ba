#!/bin/sh
cd "$(dirname "$0")"
# r1-8b.yaml is shared with the 8-GPU box, here we have 4
nohup vllm serve --config r1-8b.yaml -tp 4 --max-model-len 48K --port 8100 > vllm.log 2>&1 &
echo $! > vllm.pid
