"""Search with text queries: engines, explanations of scores, and the command line."""
