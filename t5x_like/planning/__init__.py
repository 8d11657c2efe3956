"""What a train step will need on a TPU slice, found out on a host without one: topologies, XLA's compiler, its HLO."""
