import { spawn, ChildProcess } from 'node:child_process'

const config = {
  model: 'Qwen/Qwen3-14B-FP8',
  tensorParallelSize: 1,
  maxModelLen: 24576,
  maxNumSeqs: 40,
  prefixCaching: true,
  speculativeDecoding: null as null | { draftModel: string; numSpeculativeTokens: number },
  // speculativeDecoding: { draftModel: 'Qwen/Qwen3-0.6B', numSpeculativeTokens: 4 },
}

export class VllmProvider {
  private process?: ChildProcess
  start(port = 8000) {
    const args: string[] = [config.model, '--port', String(port)]
    if (config.tensorParallelSize > 1) {
      args.push('--tensor-parallel-size', String(config.tensorParallelSize))
    }
    args.push('--max-model-len', String(config.maxModelLen))
    if (config.maxNumSeqs) {
      args.push('--max-num-seqs', String(config.maxNumSeqs))
    }
    if (config.prefixCaching) args.push('--enable-prefix-caching')
    if (config.speculativeDecoding) {
      args.push('--speculative-model', config.speculativeDecoding.draftModel)
      args.push('--num-speculative-tokens', String(config.speculativeDecoding.numSpeculativeTokens))
    }
    this.process = spawn('vllm', ['serve', ...args], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, VLLM_LOGGING_LEVEL: 'INFO' },
    })
  }
}
