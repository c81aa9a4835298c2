"""The folder, files and processes of a run."""
