"""What is stored at a path: the weights, the tokenizer and the settings of a model."""
