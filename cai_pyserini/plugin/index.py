"""Ship an index: a reproducible archive, a README, and an entry for the registry."""

import gzip
import hashlib
import re
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path, PurePosixPath

from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.packages import PIP
from cai_pyserini.core.template import template
from cai_pyserini.core.terminal import progress
from cai_pyserini.engine.skill import About, fields_of, skill
from cai_pyserini.indexes import jvm
from cai_pyserini.indexes.engines import open_searcher
from cai_pyserini.indexes.faiss import method_of
from cai_pyserini.indexes.retrieve import require_same_encoder
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.plugin import scores
from cai_pyserini.plugin.encoder import bundle, require_outside
from cai_pyserini.plugin.registry import SUFFIX, Entry, parse_entries, to_json

SKILL = "SKILL.md"
README = Path(__file__).with_name("index.md.jinja")
PREFIXES = {"impact": "lucene-inverted", "bm25": "lucene-inverted"}  # as in Pyserini's names
COMPRESSION_LEVEL = 6  # gzip's level 9 takes twice the time and saves 1%
EXCLUDED = (artifact.UNFINISHED, "write.lock")  # locks of processes
TITLES = {"impact": "Lucene impact index", "bm25": "Lucene index for BM25"}


def ship_index(index: Path, output: Path, name: str | None = None, with_encoder: bool = False) -> Entry:
    """Write the archive of an index, its README and its registry entry to a folder, and return the entry.

    The archive holds the encoder's settings and IDF, and the checkpoint if it is a local folder or `with_encoder` is
    true. Its URL is relative to the entry. Raises CaiError for a folder that is not one of our indexes, for
    `with_encoder` with an index without an encoder, and for a checkpoint that has changed since.
    """
    index = index.resolve()  # stay with one version of a run, even if an update makes another
    manifest = artifact.require(index, "index")
    kind = method_of(index) if manifest.stats["kind"] == "dense" else manifest.stats["kind"]
    title = TITLES.get(kind, f"Faiss {kind} index")
    config = load_encoder(str(index)) if (index / "encoder.yaml").is_file() else None
    require_outside(output, index)
    if with_encoder and not config:
        raise CaiError(f"{index} is a {title} that names no encoder: leave --with-encoder out")
    run_scores = scores.index_scores(index)
    has_encoder = config is not None and not config.only_words
    name = name or _default_name(index, run_scores, has_encoder)
    date = manifest.created[:10].replace("-", "")
    stem = f"{PREFIXES.get(kind, f'faiss-{kind}')}.{name}.{date}.{manifest.digest[:6]}"
    filename = f"{stem}{SUFFIX}"
    is_folder = config is not None and not config.checkpoint.startswith(PIP) and Path(config.checkpoint).is_dir()
    has_checkpoint = has_encoder and (with_encoder or is_folder)  # others do not have a local folder
    if config and has_checkpoint:
        require_same_encoder(index, EncoderModel(config), config if config.joint else None)

    def write(folder: Path) -> None:
        archive = folder / filename
        with tempfile.TemporaryDirectory(dir=folder) as staged:
            if config:
                bundle(config, Path(staged), "encoder", checkpoint=has_checkpoint)
            size = pack([index, Path(staged)], stem, archive)
        entry = Entry(
            name=name,
            description=f"{title} {name}, made by cai_pyserini.",
            filename=filename,
            readme=f"{stem}.README.md",
            urls=[filename],
            md5=_md5(archive),
            sha256=artifact.file_digest(archive),
            size=archive.stat().st_size,
            unpacked_size=size,
            documents=manifest.stats["documents"],
            **(_term_counts(index) if kind in ("impact", "bm25") else {}),
        )
        (folder / f"{stem}.json").write_text(to_json([entry]), encoding="utf-8")
        (folder / SKILL).write_text(_skill(index, entry, title), encoding="utf-8")
        values = {"entry": entry, "kind": kind, "title": title, "manifest": manifest, "scores": run_scores}
        values["size"] = size_of(index)
        readme = template(README).render(**values, encoder=config, inside=has_checkpoint)
        (folder / entry.readme).write_text(readme, encoding="utf-8")

    inputs = {
        "index": [manifest.digest, manifest.created],
        "encoder": config and config.model_dump(mode="json", exclude={"idf", "projection"}, exclude_defaults=True),
        "scores": run_scores,
    }
    recipe = artifact.recipe("ship", inputs, name=name, inside=has_checkpoint)
    artifact.make(output, recipe, write)
    (entry,) = parse_entries((output / f"{stem}.json").read_bytes(), stem)
    return entry


def size_of(index: Path) -> str:
    """How many documents an index has, in words."""
    with closing(open_searcher(index)) as searcher:
        if searcher.manifest.stats.get("passages"):
            return f"{searcher.documents_in_passages:,} documents in {searcher.documents:,} passages"
        return f"{searcher.documents:,} documents"


def _skill(index: Path, entry: Entry, title: str) -> str:
    """How an assistant searches the index."""
    use = f"""\
```bash
cai-pyserini ship add {entry.folder}.json  # once
cai-pyserini search "$(cai-pyserini ship get {entry.name})" "QUESTION" --hits 10 --format json
```"""
    with closing(open_searcher(index)) as searcher:
        passages = searcher.manifest.stats.get("passages")
        documents = searcher.documents_in_passages if passages else searcher.documents
        about = About(entry.name, title, documents, searcher.language)
        fields = [*fields_of(searcher.metadata, searcher.matches(None))]
    return skill(entry.name, use, [about], fields)


def _default_name(index: Path, run_scores: scores.Scores | None, has_encoder: bool) -> str:
    """The name of an index: collection.encoder.index in a run folder, or else the folder's name."""
    of_run = [run_scores.collection, *([run_scores.encoder] if has_encoder else [])] if run_scores else []
    return re.sub(r"[^\w.+-]+", "-", ".".join([*of_run, index.name])).lstrip(".+-")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _term_counts(index: Path) -> dict[str, int]:
    """The numbers of terms by which Pyserini checks prebuilt indexes."""
    with jvm.using_java(f"opening {index}"):
        utilities = jvm.java_class("io.anserini.index.IndexReaderUtils")
        reader = utilities.getReader(str(index))
        stats = utilities.getIndexStats(reader, "contents")
        counts = {key: int(stats.get(key)) for key in ("unique_terms", "total_terms")}
        reader.close()
    return counts


def pack(folders: Sequence[Path], name: str, output: Path) -> int:
    """Write the files of folders to a .tar.gz, as one folder `name`; for equal paths, the last folder wins.

    Returns the size of the uncompressed tar in bytes. Equal files give equal bytes: members are sorted, and have
    neither owner nor time.
    """
    files = {
        path.relative_to(folder): path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path.name not in EXCLUDED
    }
    parents = {parent for path in files for parent in path.parents}
    paths = progress(sorted({*parents, *files}), len(parents) + len(files), f"pack {name}", "files")
    with output.open("wb") as file, gzip.GzipFile("", "wb", COMPRESSION_LEVEL, file, mtime=0) as zipped:
        with tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in paths:
                member = tarfile.TarInfo(PurePosixPath(name, path).as_posix())
                if path in parents:
                    member.type, member.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(member)
                else:
                    member.size = files[path].stat().st_size
                    with files[path].open("rb") as contents:
                        tar.addfile(member, contents)
        return zipped.tell()
