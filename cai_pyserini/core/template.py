"""Templates of pages and of Markdown files."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, select_autoescape


def template(path: Path, *others: Path) -> Template:
    """The Jinja template in a file, which may import others beside it and in `others`, folders. An HTML template
    (NAME.html.jinja) escapes the values filled in."""
    environment = Environment(
        loader=FileSystemLoader([path.parent, *others]),
        autoescape=select_autoescape(["html.jinja"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(path.name)
