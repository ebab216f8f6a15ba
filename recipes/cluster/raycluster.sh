#!/bin/sh
# Ray on bare metal: run this on every node, with the first node's private address. The command runs on the first node.
#
#   sh recipes/cluster/raycluster.sh 10.0.0.1                  on the node 10.0.0.1: the head
#   sh recipes/cluster/raycluster.sh 10.0.0.1 10.0.0.2         on the node 10.0.0.2
#   outrider train r1/resume_screening cluster.address=auto cluster.capture_replicas=2 training.processes=16 training.rows_per_step=16
#   ray stop                                                   on every node
#
# All nodes need the same Outrider (extra `cluster`), Python and target at the same paths, and a shared disk for runs/. RAY_AUTH_MODE=token
# needs the same token on every node: `ray get-auth-token --generate`, then copy ~/.ray/auth_token (mode 600).
set -eu
head=$1
node=${2:-$1}
port=${RAY_PORT:-6379}
export RAY_AUTH_MODE="${RAY_AUTH_MODE:-token}" RAY_USAGE_STATS_ENABLED=0 RAY_automatic_object_spilling_enabled=0

if [ "$node" = "$head" ]; then
    # The dashboard and the job server listen on 127.0.0.1 only: reach them with `ssh -L 8265:127.0.0.1:8265`.
    exec ray start --head --node-ip-address="$node" --port="$port" --dashboard-host=127.0.0.1 --disable-usage-stats
fi
exec ray start --address="$head:$port" --node-ip-address="$node" --disable-usage-stats
