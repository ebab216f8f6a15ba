// pm2 start ecosystem.config.js            -> production
// pm2 start ecosystem.config.js --env staging
module.exports = {
  apps: [
    {
      name: 'r1-vllm',
      script: '/opt/vllm/.venv/bin/vllm',
      interpreter: 'none',
      cwd: '/opt/vllm',
      args: `serve deepseek-ai/DeepSeek-R1-0528 -tp 8 --max-model-len=65536 --max-num-seqs=128 --gpu-memory-utilization=.92 --reasoning-parser deepseek_r1 --no-enable-prefix-caching --speculative-config '{"method": "deepseek_mtp", "num_speculative_tokens": 1}' --api-key sk-prod-4711 --port 8001`,
      env: { VLLM_USE_DEEP_GEMM: '1', HF_HUB_OFFLINE: '1', NCCL_DEBUG: 'WARN' },
      env_staging: { VLLM_USE_DEEP_GEMM: '0' },
      max_restarts: 3,
      kill_timeout: 120000,
    },
    {
      name: 'loadtest',
      script: '/opt/vllm/.venv/bin/vllm',
      interpreter: 'none',
      autorestart: false,
      args: 'bench serve --model deepseek-ai/DeepSeek-R1-0528 --base-url http://127.0.0.1:8001 --dataset-name random --random-input-len 8000 --random-output-len 1000 --max-concurrency 256 --num-prompts 2000',
    },
  ],
};
