"""Our encoders inside Pyserini, exports for a Pyserini without this package, and other frameworks."""
