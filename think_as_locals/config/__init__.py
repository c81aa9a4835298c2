"""From a recipe to a validated configuration, without torch."""
