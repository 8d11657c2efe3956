"""What a model knows: attention heads, probes, cloze sentences, minimal pairs and interventions."""
