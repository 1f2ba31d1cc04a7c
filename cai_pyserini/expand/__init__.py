"""Document expansion with associated words and neighbours' words."""
