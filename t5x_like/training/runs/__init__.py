"""The run directory MODEL_DIR: its lock, stored configuration, log, tokenizer and vocabulary."""
