"""The exception for errors that a user can fix."""


class CaiError(Exception):
    """An error that the user can fix. The message names the file, the line and the remedy."""
