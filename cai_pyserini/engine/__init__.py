"""Systems that answer queries one at a time: hits with their texts, and why they are hits."""
