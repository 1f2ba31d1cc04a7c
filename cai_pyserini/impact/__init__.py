"""Raw vectors -> weighted, quantized impacts, as JSON vectors for Lucene."""
