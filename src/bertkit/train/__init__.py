"""→ weights: the recipe, the one loop, and what it needs."""
