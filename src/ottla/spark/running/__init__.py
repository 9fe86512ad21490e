"""What every pipeline runs by: its queries, what they show, and their checkpoints."""
