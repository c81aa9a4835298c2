"""From rollouts to an updated judge: the cold start, GRPO, checkpoints, and the records of a run."""

import sys

if "vllm" not in sys.modules:
    # TRL imports vLLM (5 s) wherever it is installed. Blocked here, it is imported by `rollouts.ColocatedEngine` alone.
    sys.modules["vllm"] = None  # type: ignore[assignment]
    try:
        import trl.generation.vllm_generation  # noqa: F401
    finally:
        del sys.modules["vllm"]
