"""Expanding documents by words that a dense encoder finds near them."""
