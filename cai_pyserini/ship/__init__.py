"""Ship indexes and encoders to others: archives, a registry of them, model cards, and folders for a hub."""
