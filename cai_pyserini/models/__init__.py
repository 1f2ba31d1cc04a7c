"""Neural models: a checkpoint folder in, vectors or scores out."""
