"""From rollouts to an updated judge: the cold start, GRPO, checkpoints, and the records of a run."""

import importlib.metadata
from functools import cache
from unittest.mock import patch

from transformers.utils import is_scipy_available, is_sklearn_available

from think_as_locals.runtime.processes import hidden, imported_on_use


def _forget_what_is_available() -> None:
    is_scipy_available.cache_clear()
    is_sklearn_available.cache_clear()


_forget_what_is_available()  # who imported transformers before may have asked
# Hidden, as libraries import them for what we do not use: vLLM (5 s; `rollouts.ColocatedGeneration` imports it itself),
# scikit-learn (1 s), SciPy, boto3, and Weave, which imports W&B. Trackers (0.4 s) are imported by the runs that report
# to them. Which distribution has a package is looked up once (0.3 s), not by transformers and TRL each.
with (
    hidden("vllm", "sklearn", "scipy", "boto3", "weave"),
    imported_on_use("wandb", "trackio"),
    patch.object(importlib.metadata, "packages_distributions", cache(importlib.metadata.packages_distributions)),
):
    import trl.trainer.grpo_trainer
    import trl.trainer.sft_trainer  # noqa: F401
_forget_what_is_available()
