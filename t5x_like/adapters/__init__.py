"""Parameters that are added to the modules of a model, such as LoRA."""
