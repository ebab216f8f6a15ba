#!/bin/sh
# Submits a run as a job to an existing Ray cluster, from the head node or through `ssh -L 8265:127.0.0.1:8265 HEAD`.
#
#   sh recipes/cluster/submit.sh --recipe r1/resume_screening --runs /shared/runs traffic.path=/shared/logs training.processes=16 training.rows_per_step=16
#
# The job server runs the command on the head node. No working directory is uploaded: outrider is installed on the nodes.
set -eu
export RAY_API_SERVER_ADDRESS="${RAY_API_SERVER_ADDRESS:-http://127.0.0.1:8265}"
exec ray job submit -- outrider train "$@" cluster.address=auto
