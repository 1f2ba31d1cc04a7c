"""Text in, hits out: open indexes, fused rankings, snippets and explanations."""
