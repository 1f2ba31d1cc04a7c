"""Exports to a server, behind an alias.

The name of an export is an alias. Documents are loaded into a new collection of the server (in search engines: index),
and then the alias is switched to it in one step, so that searches always find a complete collection. The names of
collections begin with a digest of the output folder: they collide with no others, and the same command finds the
remains of an interrupted one.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from cai_pyserini.core import artifact, files
from cai_pyserini.core.errors import CaiError
from cai_pyserini.plugin.source import Source


class Server(Protocol):
    """A server with collections, and aliases for them."""

    noun: str  # what the server calls a collection
    address: str  # without password, for messages and manifests

    def behind(self, alias: str) -> str | None:
        """The collection that an alias points to: itself if it is a collection; None if there is neither."""

    def unused(self, first: str, old: str | None) -> str:
        """A name, `first` or longer, for a collection beside `old`."""

    def point(self, alias: str, new: str, old: str | None) -> None:
        """Point the alias to the collection `new`, and drop the collection `old` that it pointed to, unless the server
        keeps it for some time."""


def export_to_server(
    source: Source,
    output: Path,
    server: Server,
    alias: str,
    load: Callable[[str, Path], list[str]],
    *,
    format: str,
    settings: Mapping[str, object],
    more_stats: artifact.Stats | None = None,
) -> artifact.Manifest:
    """Load the documents into a collection, switch the alias to it, and make the artifact `output`.

    `load` takes the name of the new collection and a folder for files, and returns what the format loses; `settings`
    shape what is stored. Raises CaiError if the alias is taken, unless the manifest of `output` says that it is ours.
    """
    address = {"uri": server.address, server.noun: alias}
    manifest = artifact.read_manifest(output)
    is_ours = manifest is not None and address.items() <= manifest.recipe["settings"].get("to", {}).items()
    old = server.behind(alias)
    if is_ours and old is None:
        artifact.require_writable(output)
        files.remove(output)  # so that the collection is made again
    elif old is not None and not is_ours:
        raise CaiError(
            f"{server.address} has a {server.noun} {alias!r} that {output} does not belong to; choose another --name"
        )
    new = server.unused(f"{alias}_{artifact.digest(str(output.resolve()))}", old)

    def write(source: Source, folder: Path) -> list[str]:
        loses = load(new, folder)
        server.point(alias, new, old)
        return loses

    return source.export(output, write, format, more_stats, **address, **settings)
