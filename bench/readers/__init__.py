"""Who reads: each a process of its own that says, or shows, how much it has read when."""
