#!/bin/sh
# DeepSpeed's launcher, over pdsh, on every machine of a hostfile. The machines share the run directory and this Python.
#
#   outrider train r1/resume_screening training.processes=16 training.rows_per_step=16 \
#       'training.launcher=sh recipes/r1/launch/deepspeed.sh recipes/r1/launch/hostfile'
#
# The trainer appends the path of spec.json and sets OUTRIDER_PYTHON. Further variables for the other machines: .deepspeed_env
set -eu
exec "$OUTRIDER_PYTHON" -m deepspeed.launcher.runner --hostfile "$1" --master_port "${MASTER_PORT:-29500}" \
    --no_local_rank --module outrider.training.distributed.worker "$2"
