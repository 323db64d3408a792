"""→ weights: the recipe, the training loop, and what they need."""
