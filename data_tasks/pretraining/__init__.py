"""Pretraining tasks: language modeling, masked language modeling, sentence pairs and denoising."""
