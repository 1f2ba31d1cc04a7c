"""Indexes, written and searched; all of Java is here."""
