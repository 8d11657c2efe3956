"""What `convert` reads and writes: weights of other libraries, runs, and Hugging Face directories."""
