"""Ship an index: its archive, a README, and its entry for the registry."""

import hashlib
import re
import tempfile
from pathlib import Path

from cai_pyserini.core import artifact, jvm
from cai_pyserini.core.config import EncoderConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.packages import PIP
from cai_pyserini.core.template import template
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.retrieval.search import require_same_encoder
from cai_pyserini.ship import hub, scores
from cai_pyserini.ship.archive import pack
from cai_pyserini.ship.bundle import bundle, require_outside
from cai_pyserini.ship.registry import SUFFIX, Entry, parse_entries, to_json

README = Path(__file__).with_name("index.md.jinja")
PREFIXES = {"impact": "lucene-inverted", "bm25": "lucene-inverted", "dense": "faiss-flat"}  # Pyserini's
TITLES = {"impact": "Lucene impact index", "bm25": "Lucene index for BM25", "dense": "Faiss flat index"}


def ship_index(
    index: Path, output: Path, name: str | None = None, with_encoder: bool = False, repository: str | None = None
) -> Entry:
    """Write the archive of an index, its README and its entry to a folder, and return the entry.

    The archive holds the encoder's settings and IDF, and the checkpoint if that is a folder or `with_encoder`. URLs of
    the entry are those in `repository`, if given; else relative to the entry. Raises CaiError for what is no index of
    ours, for `with_encoder` with an index that names no encoder, and for a checkpoint that is not the index's any more.
    """
    manifest = artifact.require(index, "index")
    kind = manifest.stats["kind"]
    config = load_encoder(str(index)) if (index / "encoder.yaml").is_file() else None
    require_outside(output, index)
    if with_encoder and not config:
        raise CaiError(f"{index} is a {TITLES[kind]} that names no encoder: leave --with-encoder out")
    found = scores.of_index(index)
    name = name or _name(index, found, config)
    stem = f"{PREFIXES[kind]}.{name}.{manifest.created[:10].replace('-', '')}.{manifest.digest[:6]}"
    filename = f"{stem}{SUFFIX}"
    url = hub.file_url(repository, filename, "dataset") if repository else filename
    inside = config is not None and (with_encoder or _is_folder(config))
    if config and inside:
        require_same_encoder(index, Encoder(config), config if config.joint else None)

    def write(folder: Path) -> None:
        archive = folder / filename
        with tempfile.TemporaryDirectory(dir=folder) as staged:
            if config:
                bundle(config, Path(staged), "encoder", checkpoint=inside)
            size = pack([index, Path(staged)], stem, archive)
            settings = (Path(staged) / "encoder.yaml").read_text(encoding="utf-8") if config else ""
        with archive.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        entry = Entry(
            name=name,
            description=f"{TITLES[kind]} {name}, made by cai_pyserini.",
            filename=filename,
            readme=f"{stem}.README.md",
            urls=[url],
            md5=md5,
            sha256=artifact.file_digest(archive),
            size=archive.stat().st_size,
            unpacked_size=size,
            documents=manifest.stats["documents"],
            **({} if kind == "dense" else _terms(index)),
        )
        (folder / f"{stem}.json").write_text(to_json([entry]), encoding="utf-8")
        readme = template(README).render(
            entry=entry,
            kind=kind,
            title=TITLES[kind],
            manifest=manifest,
            scores=found,
            encoder=config,
            settings=settings,
            inside=inside,
        )
        (folder / entry.readme).write_text(readme, encoding="utf-8")

    inputs = {
        "index": [manifest.digest, manifest.created],
        "encoder": config and config.model_dump(mode="json", exclude={"idf", "projection"}, exclude_defaults=True),
        "scores": found,
    }
    recipe = artifact.recipe("ship", inputs, name=name, inside=inside, url=url)
    artifact.make(output, recipe, write)
    (entry,) = parse_entries((output / f"{stem}.json").read_bytes(), stem)
    return entry


def _name(index: Path, found: scores.Scores | None, config: EncoderConfig | None) -> str:
    """collection.encoder.index for one of a run folder, else the name of its folder."""
    parts = [found.collection, *([found.encoder] if config else [])] if found else []
    return re.sub(r"[^\w.+-]+", "-", ".".join([*parts, index.resolve().name])).lstrip(".+-")


def _is_folder(config: EncoderConfig) -> bool:
    """Whether the checkpoint is a folder, which others do not have."""
    return not config.checkpoint.startswith(PIP) and Path(config.checkpoint).is_dir()


def _terms(index: Path) -> dict[str, int]:
    """The numbers of terms that Pyserini checks prebuilt indexes by."""
    java = jvm.java_class
    with jvm.using_java(f"opening {index}"):
        reader = java("io.anserini.index.IndexReaderUtils").getReader(str(index))
        stats = java("io.anserini.index.IndexReaderUtils").getIndexStats(reader, "contents")
        found = {key: int(stats.get(key)) for key in ("unique_terms", "total_terms")}
        reader.close()
    return found
