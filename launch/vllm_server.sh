#!/usr/bin/env bash
# A vLLM server for rollout=vllm_server: launch/vllm_server.sh MODEL --dtype bfloat16 [any option of vLLM's server]
# MODEL and dtype are those of the run. The server listens on loopback, port 8000, unless HOST and PORT are set. The run's weights
# reach it by NCCL or through rollout.weights_dir, which both must see. Options override those of this script. To add:
#   --enforce-eager                               on a machine without a GPU
#   --enable-lora --max-lora-rank 16              for a run with lora=rank16: weight syncs then send only the adapter
#   --hf-overrides '{"head_dtype":"model"}'       for a run that does not cast its LM head to float32
set -euo pipefail
: "${VLLM_API_KEY:?set it to a secret that the run has in its environment too, e.g. export VLLM_API_KEY=\$(openssl rand -hex 32)}"
export VLLM_SERVER_DEV_MODE=1 VLLM_NO_USAGE_STATS=1 # the routes that change weights; RequireKey asks for the key on all of them
export VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 # those that load adapters
export VLLM_CPU_OMP_THREADS_BIND="${VLLM_CPU_OMP_THREADS_BIND:-nobind}"
exec "${PYTHON:-python}" -m vllm.entrypoints.openai.api_server --hf-overrides '{"head_dtype": "float32"}' \
  --model "${1:?name the model: launch/vllm_server.sh MODEL --dtype DTYPE}" \
  --host "${HOST:-127.0.0.1}" --port "${PORT:-8000}" \
  --logprobs-mode processed_logprobs --generation-config vllm \
  --weight-transfer-config '{"backend": "tal"}' \
  --worker-extension-cls think_as_locals.engines.vllm_worker.WorkerExtension \
  --middleware think_as_locals.engines.vllm_worker.RequireKey "${@:2}"
