"""Questions about a collection, an encoder and finished runs: one module, one question."""
