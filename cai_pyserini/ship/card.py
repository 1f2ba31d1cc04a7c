"""READMEs of indexes and model cards of encoders, from Markdown templates."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def render(template: str, **values: Any) -> str:
    """The text of a template in this folder with these values. Raises jinja2.UndefinedError if one is missing."""
    environment = Environment(  # noqa: S701 (Markdown is not escaped)
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)
