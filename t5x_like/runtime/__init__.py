"""The process around a run: distributed start-up, signals, preemption, supervision, logs and the compilation cache."""
