"""What this node knows of the cluster, and how it changes it."""
