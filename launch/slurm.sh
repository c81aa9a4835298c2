#!/usr/bin/env bash
# A run as a Slurm job that survives its time limit and pre-emption: ten minutes before, all workers save and stop, the job
# is queued again and continues. From the project's folder:
#   sbatch --nodes 2 launch/slurm.sh recipes/tal_grpo.yaml model=qwen2_5_14b
#SBATCH --job-name=tal
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --signal=USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
recipe=$1
shift
export TAL_MAIN_HOST TAL_PROCESSES=$((8 * SLURM_NNODES))
TAL_MAIN_HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# shellcheck disable=SC2016 # each node expands it
srun bash -c 'exec launch/node.sh --config_file launch/nodes_zero3.yaml --num_machines "$SLURM_NNODES" \
    --num_processes "$TAL_PROCESSES" --machine_rank "$SLURM_NODEID" --main_process_ip "$TAL_MAIN_HOST" \
    --main_process_port 29500 "$@"' node "$recipe" "run.name=$SLURM_JOB_NAME-$SLURM_JOB_ID" run.resume=auto "$@"
status=$?
if [ "$status" -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
