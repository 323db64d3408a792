"""text → answers."""
