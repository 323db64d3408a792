"""weights ↔ folder: the artifact, and checkpoints in other formats."""
