#!/usr/bin/env bash
# A modebridge run on several Slurm nodes: `sbatch slurm.sh cifar10 --data DIR`; options of `modebridge run` follow the recipe.
# Needs a home directory that all nodes see, with a virtual environment ($VENV) that has modebridge[cluster].
# Submit it again to resume: finished stages are in the run folder.
#SBATCH --job-name=modebridge
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@60
set -euo pipefail

recipe=${1:-cifar10}
venv=${VENV:-$HOME/venv}
runs=${RUNS:-$HOME/runs}
port=${PORT:-6379}
cores=${SLURM_CPUS_PER_TASK:-1}
gpus=${SLURM_GPUS_ON_NODE:-0}
# shellcheck disable=SC1091
source "$venv/bin/activate"
export RAY_USAGE_STATS_ENABLED=0
# Other users reach the ports of these nodes; the token is in ~/.ray/auth_token.
export RAY_AUTH_MODE=token
ray get-auth-token --generate > /dev/null

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}')

# Start Ray on every node, for the lifetime of this script.
srun --nodes=1 --ntasks=1 --overlap -w "$head" \
    ray start --head --node-ip-address "$address" --port "$port" --num-cpus "$cores" --num-gpus "$gpus" \
    --include-dashboard=false --block &
others=$((${#nodes[@]} - 1))
if ((others > 0)); then
    sleep 15
    srun --nodes="$others" --ntasks="$others" --overlap --exclude "$head" \
        ray start --address "$address:$port" --num-cpus "$cores" --num-gpus "$gpus" --block &
fi
sleep 15
if (($(jobs -r | wc -l) < 1 + (others > 0))); then
    echo "Ray did not start on every node; see the messages above." >&2
    exit 1
fi

# The driver runs on the head node; only it writes to the run folder.
srun --nodes=1 --ntasks=1 --overlap -w "$head" \
    modebridge run "$recipe" --on "$address:$port" --out "$runs/$recipe" --shared "$runs/.checkpoints" "${@:2}"
