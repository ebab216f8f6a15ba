#!/bin/sh
# torchrun on every machine of a hostfile, over ssh. The machines share the run directory and this Python.
#
#   outrider train r1/resume_screening training.processes=16 training.rows_per_step=16 \
#       'training.launcher=sh recipes/r1/launch/torchrun.sh recipes/r1/launch/hostfile'
#
# The trainer appends the path of spec.json and sets OUTRIDER_PYTHON. ssh passes no variables, so those of NCCL, gloo and
# torch are in the command. NCCL_SOCKET_IFNAME, for instance, must name the same device on every machine.
set -eu
hostfile=$1
spec=$2

machines=$(sed 's/#.*//' "$hostfile" | awk 'NF { sub("slots=", "", $2); print $1 ":" $2 }')
count=$(echo "$machines" | wc -l)
first=$(echo "$machines" | head -n 1)
first=${first%%:*}

# NAME='value' for each; a quote in a value ends the quotes, is escaped, and begins them again.
passed=$(env | grep -E '^(NCCL|GLOO|TORCH|PYTORCH)_[A-Za-z0-9_]*=' | sed "s/'/'\\\\''/g; s/=/='/; s/\$/'/" | tr '\n' ' ')

rank=0
running=
for machine in $machines; do
    # -tt: the remote processes end with the connection.
    ssh -tt -o BatchMode=yes "${machine%%:*}" "cd '$PWD' && exec env $passed'$OUTRIDER_PYTHON' -m torch.distributed.run \
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
