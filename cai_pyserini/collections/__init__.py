"""Documents, topics and qrels: formats, checks, and conversion from other formats."""
