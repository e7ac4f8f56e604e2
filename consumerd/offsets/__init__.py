"""Where a group's positions are kept, and how far a partition has got."""
