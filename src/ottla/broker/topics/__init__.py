"""Topics: their names, how they are created, taken over from directories, and removed."""
