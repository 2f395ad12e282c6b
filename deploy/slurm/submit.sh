#!/bin/bash
# Start a Dask cluster as Slurm jobs, run one command of rff-dist on it, and end it:
#
#   export RFF_DIST_RUN=$HOME/rff_dist-run       # a folder that all nodes share
#   deploy/tls.sh "$RFF_DIST_RUN/tls"            # once
#   deploy/slurm/submit.sh fit "$PWD/data.zarr" "$PWD/model" --n-components 4096
#
# RFF_DIST_VENV is the environment that rff_dist is installed in, on a shared disk too (default: .venv of this clone);
# WORKERS how many worker jobs there are (default 4). Time limits, memory and CPUs are in the heads of the job files;
# what a cluster demands besides, such as an account, goes into SBATCH_ACCOUNT, SBATCH_PARTITION and their kin.
set -euo pipefail

[ $# -ge 1 ] || { echo "submit.sh: which command? usage: submit.sh fit DATA MODEL [OPTION ...]" >&2; exit 2; }
: "${RFF_DIST_RUN:?is not set: a folder that all nodes share}"
jobs=$(cd "$(dirname "$0")" && pwd)
RFF_DIST_VENV=${RFF_DIST_VENV:-$(cd "$jobs/../.." && pwd)/.venv}
export RFF_DIST_RUN RFF_DIST_VENV
[ -x "$RFF_DIST_VENV/bin/rff-dist" ] || { echo "submit.sh: no rff-dist in RFF_DIST_VENV=$RFF_DIST_VENV" >&2; exit 69; }
[ -r "$RFF_DIST_RUN/tls/client-key.pem" ] ||
    { echo "submit.sh: no certificates; run deploy/tls.sh $RFF_DIST_RUN/tls" >&2; exit 69; }

mkdir -p "$RFF_DIST_RUN/logs"
log="$RFF_DIST_RUN/logs/%x-%j.log"
scheduler=$(sbatch --parsable --output="$log" "$jobs/scheduler.sbatch")
# Federated clusters answer NUMBER;CLUSTER.
export RFF_DIST_SCHEDULER_FILE="$RFF_DIST_RUN/scheduler-${scheduler%%;*}.json"
workers=$(sbatch --parsable --output="$log" --array="1-${WORKERS:-4}" --dependency="after:${scheduler%%;*}" \
    "$jobs/workers.sbatch")
client=$(sbatch --parsable --output="$log" --dependency="after:${scheduler%%;*}" "$jobs/client.sbatch" "$@")
# However the client ends, the cluster ends with it.
sbatch --parsable --output="$log" --job-name=rff-end --time=5 --mem=100M --dependency="afterany:${client%%;*}" \
    --wrap "scancel --quiet ${scheduler%%;*} ${workers%%;*}; rm -f '$RFF_DIST_SCHEDULER_FILE'" >/dev/null
echo "scheduler ${scheduler%%;*}, workers ${workers%%;*}, client ${client%%;*}"
echo "its output: $RFF_DIST_RUN/logs/rff-client-${client%%;*}.log"
