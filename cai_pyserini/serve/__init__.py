"""Serve search over HTTP and MCP."""
