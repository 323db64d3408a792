"""Batch → vectors: the encoder and its parts."""
