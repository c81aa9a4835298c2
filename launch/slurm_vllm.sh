#!/usr/bin/env bash
# As launch/slurm.sh, with a vLLM server on the first node and training on the others. The first argument is for the server: the
# run's model, its dtype and any options of vLLM's server without blanks or quotes in them. All nodes must see the project's folder, through which adapters are sent.
#   VLLM_API_KEY=$(openssl rand -hex 32) sbatch --nodes 3 launch/slurm_vllm.sh "MODEL --dtype bfloat16 --tensor-parallel-size 4" recipes/tal_grpo.yaml model=qwen2_5_14b
#SBATCH --job-name=tal
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --signal=USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
: "${VLLM_API_KEY:?export it before sbatch: the server and the run get it from there}"
read -ra serve <<<"$1"
recipe=$2
shift 2
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
server=${hosts[0]}
export TAL_MAIN_HOST=${hosts[1]:?a vLLM node and one that trains need --nodes 2 or more} TAL_NODES=$((SLURM_NNODES - 1))
export TAL_PORT=$((10000 + SLURM_JOB_ID % 20000)) PORT=$((30000 + SLURM_JOB_ID % 2000)) # that no other job has
export TAL_PROCESSES=$((${SLURM_GPUS_ON_NODE:-8} * TAL_NODES)) SRUN_CPUS_PER_TASK=$SLURM_CPUS_ON_NODE # all cores for its task
# The signal before the time limit reaches every step: the server keeps running until the last training step is saved.
HOST=0.0.0.0 srun --nodes 1 --ntasks 1 --nodelist "$server" \
    bash -c 'trap "" USR1; exec launch/vllm_server.sh "$@"' server "${serve[@]}" &
serving=$!
until curl --silent --fail --max-time 5 "http://$server:$PORT/health"; do
    kill -0 "$serving" || exit 1 # it has ended with a message
    sleep 5
done
# shellcheck disable=SC2016 # each node expands it
srun --nodes "$TAL_NODES" --ntasks "$TAL_NODES" --exclude "$server" bash -c 'exec launch/node.sh \
    --config_file launch/nodes_zero3.yaml --num_machines "$TAL_NODES" --num_processes "$TAL_PROCESSES" \
    --machine_rank "$SLURM_NODEID" --main_process_ip "$TAL_MAIN_HOST" --main_process_port "$TAL_PORT" "$@"' node "$recipe" \
    rollout=vllm_server "rollout.url=http://$server:$PORT" "run.name=$SLURM_JOB_NAME-$SLURM_JOB_ID" run.resume=auto "$@"
status=$?
kill "$serving"
if [ "$status" -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
