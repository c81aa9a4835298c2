#!/usr/bin/env bash
# A run as a Slurm job that survives its time limit and pre-emption: ten minutes before the end all workers save and stop, and the
# requeued job continues. Run it from the project's folder:
#   sbatch --nodes 2 launch/slurm.sh recipes/tal_grpo.yaml model=qwen3_8b
#SBATCH --job-name=tal
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --signal=USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
recipe=$1
shift
# A port that no other job on these nodes uses, and all cores of a node for its single task.
export TAL_MAIN_HOST TAL_PROCESSES=$((${SLURM_GPUS_ON_NODE:-8} * SLURM_NNODES)) TAL_PORT=$((10000 + SLURM_JOB_ID % 20000))
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_ON_NODE
TAL_MAIN_HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# shellcheck disable=SC2016 # each node expands it
srun bash -c 'exec launch/node.sh --config_file launch/nodes_zero3.yaml --num_machines "$SLURM_NNODES" \
    --num_processes "$TAL_PROCESSES" --machine_rank "$SLURM_NODEID" --main_process_ip "$TAL_MAIN_HOST" \
    --main_process_port "$TAL_PORT" "$@"' node "$recipe" "run.name=$SLURM_JOB_NAME-$SLURM_JOB_ID" run.resume=auto "$@"
status=$?
if [ "$status" -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
