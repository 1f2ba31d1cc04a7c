"""A service: search over HTTP, for programs and for people."""
