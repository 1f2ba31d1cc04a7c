"""Our encoders inside Pyserini, and exports for a Pyserini without this package."""
