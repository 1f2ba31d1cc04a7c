"""Search over HTTP and MCP, the search page, and the page to judge on."""
