"""A recipe -> a validated configuration. No torch."""
