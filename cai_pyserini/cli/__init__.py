"""The commands: `cai-pyserini NAME` calls `main` of the module NAME, which parses before it imports what is slow."""
