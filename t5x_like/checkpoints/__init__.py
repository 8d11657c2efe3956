"""The checkpoints of a run: what they contain, where they are stored, which are kept and how they are verified."""
