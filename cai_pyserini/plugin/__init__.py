"""Our encoders in Pyserini, and exports for a Pyserini without this package."""
