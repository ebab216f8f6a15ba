#!/bin/sh
# torchrun on every machine of a hostfile, over ssh. The machines share the run directory and this Python.
#
#   outrider train r1/resume_screening training.processes=16 training.rows_per_step=16 \
#       'training.launcher=sh recipes/r1/launch/torchrun.sh recipes/r1/launch/hostfile'
#
# The trainer appends the path of spec.json and sets OUTRIDER_PYTHON.
set -eu
hostfile=$1
spec=$2

machines=$(sed 's/#.*//' "$hostfile" | awk 'NF { sub("slots=", "", $2); print $1 ":" $2 }')
count=$(echo "$machines" | wc -l)
first=$(echo "$machines" | head -n 1)
first=${first%%:*}

rank=0
running=
for machine in $machines; do
    # -tt: the remote processes end with the connection.
    ssh -tt -o BatchMode=yes "${machine%%:*}" "cd '$PWD' && exec '$OUTRIDER_PYTHON' -m torch.distributed.run \
        --nnodes=$count --node_rank=$rank --nproc_per_node=${machine##*:} \
        --master_addr=$first --master_port=${MASTER_PORT:-29500} -m outrider.training.distributed.worker '$spec'" </dev/null &
    running="$running $!"
    rank=$((rank + 1))
done
status=0
for process in $running; do
    wait "$process" || status=1
done
exit $status
