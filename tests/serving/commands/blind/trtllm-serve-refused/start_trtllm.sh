#!/bin/bash
set -e
MODEL=nvidia/DeepSeek-R1-0528-NVFP4-v2
cat > /tmp/extra-llm-api-config.yml <<EOF
enable_attention_dp: false
cuda_graph_config:
  enable_padding: true
  max_batch_size: 128
kv_cache_config:
  free_gpu_memory_fraction: 0.85
  dtype: fp8
speculative_config:
  decoding_type: MTP
  num_nextn_predict_layers: 3
EOF

trtllm-serve "$MODEL" \
  --backend pytorch \
  --host 0.0.0.0 --port 8000 \
  --tp_size 8 --ep_size 8 \
  --max_batch_size 128 --max_num_tokens 8192 --max_seq_len 65536 \
  --extra_llm_api_options /tmp/extra-llm-api-config.yml
