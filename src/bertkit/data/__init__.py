"""ids → Batch: from encoded texts to what the encoder takes."""
