"""From tasks to batches: feature specs, length arithmetic, the SeqIO feed and prefetching."""
