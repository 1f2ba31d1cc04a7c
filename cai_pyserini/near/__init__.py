"""Near documents: of each document, those nearest to it."""
