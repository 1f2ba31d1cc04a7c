"""Readers of the text of documents in files, which `file_text` runs in processes of their own."""
