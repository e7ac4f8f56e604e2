"""From fetched batches to sinks, and from the sinks' acknowledgements to commits: one pipeline a partition."""
