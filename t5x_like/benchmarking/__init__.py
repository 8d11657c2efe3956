"""What `bench` measures: times of a training step and its parts, and the matrix rate of a machine."""
