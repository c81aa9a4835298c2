"""Sweeps: many runs of a recipe from one command, and a table of their results."""
