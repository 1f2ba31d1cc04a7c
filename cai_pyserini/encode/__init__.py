"""Documents and queries -> vectors, the only expensive step."""
