"""From tasks to batches: feature specs, data sources (SeqIO or a cache), conversion and prefetching."""
