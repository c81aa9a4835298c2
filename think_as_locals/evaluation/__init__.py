"""CARB and its report."""
