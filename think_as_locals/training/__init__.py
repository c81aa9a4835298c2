"""From rollouts to an updated judge: the cold start, GRPO, checkpoints, and the records of a run."""

import importlib.metadata
from functools import cache
from unittest.mock import patch

from think_as_locals.runtime.processes import hidden, imported_on_use

# Left out: vLLM (5 s), which `rollouts.ColocatedGeneration` alone uses, scikit-learn (1 s) and SciPy's optimisation, of
# assisted decoding and losses of object detection, and boto3, of accelerate's questions about SageMaker. Trackers (0.4
# s) are imported by the runs that report to them. Which distribution has a package is looked up once (0.3 s), not by
# transformers and TRL each.
with (
    hidden("vllm", "sklearn", "scipy", "boto3"),
    imported_on_use("wandb", "trackio"),
    patch.object(importlib.metadata, "packages_distributions", cache(importlib.metadata.packages_distributions)),
):
    import trl.trainer.grpo_trainer
    import trl.trainer.sft_trainer  # noqa: F401
