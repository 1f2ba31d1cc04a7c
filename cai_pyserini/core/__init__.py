"""Shared by all stages: errors, artifacts, settings, file formats, the terminal and the JVM."""
