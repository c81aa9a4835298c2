"""Reward models: items -> judgements or scores."""
