"""The one exception that is meant for users."""


class CaiError(Exception):
    """Something the caller can fix. The message names the file, the line and the remedy."""
