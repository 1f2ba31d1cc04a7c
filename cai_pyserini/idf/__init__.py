"""The collection's IDF under an encoder's own tokenizer."""
