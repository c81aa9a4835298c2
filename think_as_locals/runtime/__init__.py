"""A run on this machine: its folder, its files, its processes."""
