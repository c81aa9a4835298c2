"""From rollouts to an updated judge: the cold start, GRPO, checkpoints, and the records of a run."""

import importlib.metadata
from functools import cache
from unittest.mock import patch

from think_as_locals.runtime.processes import hidden

# vLLM (5 s), which `rollouts.ColocatedGeneration` alone uses, and scikit-learn (1 s), of assisted decoding. Which
# distribution has a package is looked up once (0.3 s), not by transformers and TRL each.
with (
    hidden("vllm", "sklearn"),
    patch.object(importlib.metadata, "packages_distributions", cache(importlib.metadata.packages_distributions)),
):
    import trl.generation.vllm_generation  # noqa: F401
