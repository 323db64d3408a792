"""weights ↔ directory: the artifact, and the checkpoints of others."""
