#!/bin/bash
# ============ single node, 8x H200 ============
export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
source /home/ai/miniconda3/etc/profile.d/conda.sh
conda activate sgl
./gpu.sh
python -m sglang.launch_server \
--served-model-name=ds-r1 --model-path=/data/models/DeepSeek-R1-0528 --host=0.0.0.0 --port=28001 --tp=8 --trust-remote-code \
--enable-p2p-check --mem-fraction-static=0.9 \
--max-total-tokens=65536 \
--max-running-requests=64 \
--random-seed 1234 \
# nextN (MTP), https://github.com/sgl-project/sglang/pull/3582
  # python -m sglang.launch_server --model deepseek-ai/DeepSeek-V3 --speculative-algo NEXTN --speculative-num-steps 2 --speculative-eagle-topk 4 --speculative-num-draft-tokens 4 --tp 8
--speculative-algo NEXTN \
--speculative-num-steps 3 \
--speculative-eagle-topk 1 \
--speculative-num-draft-tokens 4

# benchmark (from the laptop)
# python -m sglang.bench_one_batch_server --model None --base-url http://10.1.2.3:28001 --batch-size 1 --input-len 256 --output-len 256
