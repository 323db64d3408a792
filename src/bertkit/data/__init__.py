"""ids → Batch: from encoded texts to the encoder's input."""
