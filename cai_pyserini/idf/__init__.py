"""IDF of an encoder's tokens in a collection."""
