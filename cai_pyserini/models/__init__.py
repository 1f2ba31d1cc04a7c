"""Neural models, which turn texts into vectors or scores."""
