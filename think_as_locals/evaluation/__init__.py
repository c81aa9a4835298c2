"""Measuring reward models: CARB, probes, downstream validity, statistics, tables and pages."""
