"""Push a trained model to the Hugging Face Hub: an allow-list of files, a leak scan, a model card, one commit."""
