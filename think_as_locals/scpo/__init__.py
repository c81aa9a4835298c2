"""SCPO (arXiv 2606.18606): scalar reward models steered to one country."""
