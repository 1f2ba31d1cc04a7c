"""What every room uses: errors, artifacts, settings, files, the terminal and the JVM."""
