#!/bin/bash -l
#SBATCH -J vllm
#SBATCH -N 1
#SBATCH --gres=gpu:h100:4
#SBATCH -c 48
#SBATCH -t 08:00:00
#
# sbatch --export=ALL,MODEL=<hf id>[,TP=..][,MAXLEN=..][,DRAFT=..] any_model.sh

set -u
: "${MODEL:?submit with sbatch --export=ALL,MODEL=...}"
TP=${TP:-4}
MAXLEN=${MAXLEN:-16384}

conda activate vllm

extra=()
if [[ -n ${DRAFT:-} ]]; then
    extra+=(--speculative-config "{\"model\": \"$DRAFT\", \"num_speculative_tokens\": ${K:-5}}")
fi

port=$((10000 + SLURM_JOB_ID % 20000))
echo "$(hostname):$port" > "$HOME/.vllm-endpoint-$SLURM_JOB_ID"

srun --cpu-bind=none vllm serve "$MODEL" \
    --tensor-parallel-size "$TP" \
    --max-model-len "$MAXLEN" \
    --dtype bfloat16 \
    --port "$port" \
    "${extra[@]}"
