"""From rollouts to an updated judge: the cold start, GRPO, checkpoints, and the records of a run."""

from think_as_locals.runtime.processes import hidden

# vLLM (5 s), which `rollouts.ColocatedGeneration` alone uses, and scikit-learn (1 s), of assisted decoding.
with hidden("vllm", "sklearn"):
    import trl.generation.vllm_generation  # noqa: F401
