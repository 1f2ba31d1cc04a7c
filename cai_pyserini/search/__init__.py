"""Text in, hits out: systems that answer queries, with the reasons for every score; and the command that searches."""
