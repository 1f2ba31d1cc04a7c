"""For others: indexes and encoders as packages, and exports to other engines."""
