"""Updating a judge: cold start (SFT) and GRPO."""
