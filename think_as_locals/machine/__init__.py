"""What this machine has, against what a recipe needs."""
