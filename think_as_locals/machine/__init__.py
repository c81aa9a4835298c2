"""Compare what this machine has with what a recipe needs."""
