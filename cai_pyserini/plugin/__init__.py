"""Use our encoders in Pyserini, or export them for Pyserini without this package."""
