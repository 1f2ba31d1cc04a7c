"""`encoders/` and `index_configs/`: YAML files, found by name or by path, read into checked dataclasses."""

from dataclasses import dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from cai_pyserini.artifact import digest, file_digest
from cai_pyserini.cli import CaiError

PIP = "pip:"  # `pip:PACKAGE/PATH` is a file or folder inside an installed Python package


@dataclass(frozen=True)
class EncoderConfig:
    """What to encode with. Every key has the default that the paper uses, except the checkpoint."""

    name: str
    checkpoint: str  # a folder, a hub id, or pip:PACKAGE/PATH
    kind: Literal["splade", "dense"] = "splade"  # dense: the mean of token vectors, for Faiss
    revision: str | None = None  # of a hub id
    max_document_length: int = 256  # word pieces, [CLS] and [SEP] included
    max_query_length: int = 256
    query: Literal["splade", "bow"] = "splade"  # bow: bag of word pieces, no model at query time (SPLADE-Doc)
    idf: str | None = None  # folder written by the idf stage; where there is none, documents are not weighted
    idf_power: float = 1.0  # SPLADE's documents, or the tokens of a dense mean, are weighted with idf ** idf_power
    bits: int = 10  # impacts are integers from 0 to 2 ** bits - 1
    range: float | None = None  # the weight that becomes the largest impact; None: the collection's largest weight
    query_scale: int = 100  # query weights are round(weight * query_scale)
    source: str | None = None  # where the checkpoint comes from, for people

    def __post_init__(self) -> None:
        _require(self, "max_document_length", self.max_document_length >= 3, "at least 3")
        _require(self, "max_query_length", self.max_query_length >= 3, "at least 3")
        _require(self, "idf_power", self.idf_power >= 0, "at least 0")
        _require(self, "bits", 1 <= self.bits <= 24, "from 1 to 24")
        _require(self, "range", self.range is None or 0 < self.range < float("inf"), "greater than 0")
        _require(self, "query_scale", self.query_scale >= 1, "at least 1")


@dataclass(frozen=True)
class PublishedScore:
    """A score from the literature, shown beside ours."""

    system: str
    score: float  # nDCG@10
    source: str


@dataclass(frozen=True)
class IndexConfig:
    """What to index and search, and the scores to compare with."""

    name: str
    source: str  # a BEIR-format folder, ir_datasets:ID with {split} in it, or hpo
    split: str = "test"
    fields: list[str] = field(default_factory=lambda: ["title", "text"])  # joined by a space
    k1: float = 0.9  # BM25, Anserini's defaults
    b: float = 0.4
    hits: int = 1000
    remove_query: bool = True  # a query that is a document is not its own result (Anserini's -removeQuery)
    published: list[PublishedScore] = field(default_factory=list)
    expected: dict[str, dict[str, float]] = field(default_factory=dict)  # encoder name (or any) -> system -> nDCG@10
    tolerance: float = 0.003
    note: str | None = None  # for people: how to get the data, what is special

    def __post_init__(self) -> None:
        _require(self, "fields", self.fields and set(self.fields) <= {"title", "text"}, "a list of title and text")
        _require(self, "k1", self.k1 >= 0, "at least 0")
        _require(self, "b", 0 <= self.b <= 1, "from 0 to 1")
        _require(self, "hits", self.hits >= 1, "at least 1")
        _require(self, "tolerance", self.tolerance >= 0, "at least 0")


def load_encoder(spec: str) -> EncoderConfig:
    """The encoder named by a file in encoders/, a YAML file, a checkpoint folder (its encoder.yaml, if it has one), or
    else the id of a model on the hub."""
    path = _find("encoders", spec)
    if path is None and (Path(spec) / "encoder.yaml").is_file():
        path = Path(spec) / "encoder.yaml"
    if path is None:
        return EncoderConfig(name=Path(spec).name, checkpoint=spec)
    config = _read(EncoderConfig, path)
    beside = {key: _beside(path, getattr(config, key)) for key in ("checkpoint", "idf") if getattr(config, key)}
    return replace(config, **beside)  # type: ignore[arg-type]


def is_encoder(spec: str) -> bool:
    """Whether `spec` is a name in encoders/, an encoder YAML, or a folder with an encoder.yaml."""
    return _find("encoders", spec) is not None or (Path(spec) / "encoder.yaml").is_file()


def load_index_config(spec: str) -> IndexConfig:
    """The collection named by a file in index_configs/, a YAML file, or any BEIR-format folder."""
    path = _find("index_configs", spec)
    if path is not None:
        config = _read(IndexConfig, path)
        return replace(config, source=_beside(path, config.source))
    if Path(spec).is_dir():
        return IndexConfig(name=Path(spec).resolve().name, source=spec)
    raise CaiError(
        f"no collection {spec!r}: give the path of a BEIR-format folder or of a YAML file, or one of "
        + ", ".join(names("index_configs"))
    )


def names(kind: str) -> list[str]:
    """The names in encoders/ or index_configs/."""
    return sorted(path.stem for path in _folder(kind).glob("*.yaml"))


def checkpoint_folder(config: EncoderConfig) -> Path:
    """The local folder of an encoder's checkpoint, downloaded from the hub where it is not one."""
    if config.checkpoint.startswith(PIP):
        return pip_path(config.checkpoint)
    if (folder := Path(config.checkpoint)).is_dir():
        return folder
    if folder.is_absolute() or config.checkpoint.startswith("."):
        raise CaiError(f"no checkpoint folder {folder}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    files = ["*.json", "*.safetensors", "*.txt", "*.model"]
    try:
        return Path(snapshot_download(config.checkpoint, revision=config.revision, allow_patterns=files))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise CaiError(
            f"no encoder {config.checkpoint!r}: it is no file in encoders/ ({', '.join(names('encoders'))}), no local "
            f"folder, and could not be had from the hub ({str(error).splitlines()[0]})"
        ) from None


def checkpoint_digest(checkpoint: Path, tokenizer_only: bool = False) -> str:
    """Names the contents of a checkpoint folder: its configuration, tokenizer and weights, or its tokenizer alone."""
    files = [
        path for path in sorted(checkpoint.iterdir()) if path.suffix in (".json", ".safetensors", ".txt", ".model")
    ]
    if tokenizer_only:
        files = [path for path in files if path.name.startswith(("tokenizer", "vocab", "merges", "added", "special"))]
    return digest({path.name: file_digest(path) for path in files if path.name != "manifest.json"})


def pip_path(spec: str) -> Path:
    """The file or folder that `pip:PACKAGE/PATH` names. The package is located, not imported."""
    package, _, path = spec.removeprefix(PIP).partition("/")
    try:
        located = Path(str(distribution(package).locate_file(path)))
    except PackageNotFoundError:
        raise CaiError(f"{spec}: package {package} is not installed: pip install 'cai-pyserini[demo]'") from None
    if not located.exists():
        raise CaiError(f"{spec}: the installed {package} {distribution(package).version} has no {path}")
    return located


def _folder(kind: str) -> Path:
    """encoders/ or index_configs/: inside the package where it is installed, beside it in a clone."""
    package = Path(__file__).parent
    return next(folder for folder in (package / kind, package.parent / kind) if folder.is_dir())


def _find(kind: str, spec: str) -> Path | None:
    """The YAML file that a name or a path means; None where it means none."""
    if spec.endswith((".yaml", ".yml")):
        if not Path(spec).is_file():
            raise CaiError(f"no file {spec}")
        return Path(spec)
    path = _folder(kind) / f"{spec}.yaml"
    return path if "/" not in spec and path.is_file() else None


def _beside(config: Path, value: str) -> str:
    """A relative path in a YAML file is relative to that file; anything else stays as it is."""
    path = config.parent / value
    return str(path) if not value.startswith(PIP) and path.exists() else value


def read_values(kind: type, path: Path) -> dict[str, Any]:
    """What a YAML file says of the fields of a dataclass, checked against their types; an unknown key is an error."""
    import yaml

    try:
        data = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise CaiError(f"no file {path}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise CaiError(f"{path}:{line}: not YAML ({error.problem})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CaiError(f"{path}: not YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(data, dict):
        raise CaiError(f"{path}: expected `key: value` lines")
    known = {f.name for f in fields(kind)}
    if unknown := sorted(set(map(str, data)) - known):
        raise CaiError(f"{path}: unknown key {', '.join(unknown)}; known keys: {', '.join(sorted(known))}")
    types = get_type_hints(kind)
    return {key: _checked(value, types[key], f"{path}: {key}") for key, value in data.items()}


def _read[C: (EncoderConfig, IndexConfig)](kind: type[C], path: Path) -> C:
    name = path.parent.name if path.name == "encoder.yaml" else path.stem
    values = {"name": name} | read_values(kind, path)
    try:
        return kind(**values)
    except TypeError as error:  # a required key is missing
        raise CaiError(f"{path}: {str(error).partition('() ')[2]}") from None
    except CaiError as error:
        raise CaiError(f"{path}: {error}") from None


def _checked(value: Any, wanted: Any, where: str) -> Any:
    """`value` as the annotated type `wanted`, or an error: YAML has types, and `bits: "8"` is a mistake."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        if value not in arguments:
            raise CaiError(f"{where}: {value!r} is not one of {', '.join(map(str, arguments))}")
        return value
    if type(None) in arguments:
        return None if value is None else _checked(value, arguments[0], where)
    if origin is list and isinstance(value, list):
        return [_checked(item, arguments[0], where) for item in value]
    if origin is dict and isinstance(value, dict):
        return {str(key): _checked(item, arguments[1], f"{where}.{key}") for key, item in value.items()}
    if wanted is PublishedScore and isinstance(value, dict) and set(value) == {"system", "score", "source"}:
        return PublishedScore(str(value["system"]), _checked(value["score"], float, where), str(value["source"]))
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin is None and isinstance(value, wanted) and isinstance(value, bool) == (wanted is bool):
        return value
    raise CaiError(f"{where}: {value!r} is not {getattr(wanted, '__name__', wanted)}")


def _require(config: Any, key: str, holds: Any, wanted: str) -> None:
    if not holds:
        raise CaiError(f"{key} is {getattr(config, key)!r}; it must be {wanted}")
