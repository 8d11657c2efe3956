"""Token-by-token generation over an explicit key-value cache, and scoring of given targets."""
