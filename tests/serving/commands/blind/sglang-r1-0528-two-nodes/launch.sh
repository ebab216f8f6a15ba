#!/bin/bash
# DeepSeek-R1-0528 on two H100 nodes (8 GPUs each)
NODE0=10.10.0.11
NODE1=10.10.0.12
IMG=lmsysorg/sglang:v0.5.3-cu129
MODEL=deepseek-ai/DeepSeek-R1-0528

run_node() {   # host rank
  ssh "$1" docker run -d --name sgl --gpus all --network host --ipc host --shm-size 32g \
    -v /data/hf:/root/.cache/huggingface \
    -e NCCL_IB_HCA=mlx5 -e GLOO_SOCKET_IFNAME=bond0 \
    $IMG python3 -m sglang.launch_server \
      --model-path $MODEL \
      --served-model-name deepseek-r1 \
      --tp 16 --nnodes 2 --node-rank "$2" \
      --dist-init-addr $NODE0:5000 \
      --context-length 65536 \
      --max-running-requests 64 \
      --mem-fraction-static 0.85 \
      --reasoning-parser deepseek-r1 \
      --speculative-algorithm EAGLE \
      --speculative-num-steps 3 \
      --speculative-eagle-topk 1 \
      --speculative-num-draft-tokens 4 \
      --trust-remote-code --host 0.0.0.0 --port 30000
}

run_node $NODE0 0
run_node $NODE1 1
