"""Where replicas and leaders are, and where they are to be: plans, the moves that carry them out, their limits."""
