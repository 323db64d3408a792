"""vectors → answers: what is asked of an encoder, one file a task."""
