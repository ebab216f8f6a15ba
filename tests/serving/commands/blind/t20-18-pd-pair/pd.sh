#!/bin/bash
# DeepSeek-R1 PD disaggregation, 1P1D on 2x 8xH200 (run the matching block on each host)
P_IP=10.0.4.11
D_IP=10.0.4.12

# ---- host 1: prefill
ssh $P_IP "nohup python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1-0528 \
  --trust-remote-code --tp-size 8 --disaggregation-mode prefill --disaggregation-transfer-backend nixl \
  --host $P_IP --port 30000 --mem-fraction-static 0.85 --max-running-requests 32 \
  --chunked-prefill-size 16384 > prefill.log 2>&1 &"

# ---- host 2: decode
ssh $D_IP "nohup python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1-0528 \
  --trust-remote-code --tp-size 8 --dp-size 8 --enable-dp-attention --disaggregation-mode decode \
  --disaggregation-transfer-backend nixl --host $D_IP --port 30001 --mem-fraction-static 0.8 \
  --max-running-requests 256 --speculative-algorithm NEXTN --speculative-num-steps 2 \
  --speculative-eagle-topk 1 --speculative-num-draft-tokens 3 > decode.log 2>&1 &"

# ---- router
python3 -m sglang_router.launch_router --pd-disaggregation \
  --prefill http://$P_IP:30000 --decode http://$D_IP:30001 --host 0.0.0.0 --port 8000
