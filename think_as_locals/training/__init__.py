"""From rollouts to an updated judge: the cold start, GRPO, checkpoints, and the records of a run."""
