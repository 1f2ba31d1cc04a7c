"""The settings of a run, where nothing slow is imported."""

from typing import Any, Literal, Self, TypedDict

from pydantic import model_validator

from cai_pyserini.core import flags
from cai_pyserini.core.settings import AnyPath, FileSettings, Names, Numbers, flag
from cai_pyserini.experiments.names import NAMES
from cai_pyserini.runs.fusions import DEPTH

PASSAGE_WORDS = 100  # words of a passage of a long document, by default


class RunSettings(FileSettings):
    """From a collection to a table of scores: encode, weight with IDF, quantize, index, search, fuse, evaluate.

    Without qrels, nothing is evaluated; without queries, only indexes are built. docs/how-to/collections.md lists the
    file formats. If interrupted, run the same command again to continue. If you change a setting, only the affected
    steps run again. The results.json of a run in place of a collection repeats that run, in another --output.

    Several collections, encoders, and seeds of what is trained run one after the other, each in its own run folder. The
    final table compares the systems on all of them, and is also written to summary.md, .tex, .csv and .json, in runs/
    or the --output. An error stops the command; what is finished keeps its results.

    The YAML file of --config can also have `train`, encoders to train first: docs/how-to/experiments.md.
    """

    example = (
        "cai-pyserini run hpo scifact --dense minilm\n  cai-pyserini run scifact --encoder splade-v3 --verify\n"
        "  cai-pyserini run hpo scifact --adapt --seed 1 2 3 --output runs/adapted"
    )
    collections: Names = flag(help=f"{flags.COLLECTION_TEXT}; one or more", positional=True, min_length=1)
    encoder: Names = flag(
        ["splade-tiny"],
        "one or more of: a name in encoders/, a YAML file, a checkpoint folder, a Hugging Face model id",
        min_length=1,
    )
    output: AnyPath | None = flag(
        None,
        "run folder for all files; with several runs, each has <output>/<collection>, with several encoders or seeds "
        "<output>/<collection>/<encoder>[-seed-<seed>] (default: runs/<collection>/<encoder>)",
    )
    split: str | None = flags.SPLIT
    strict: bool | None = flags.STRICT
    language: str | None = flag(
        None,
        "of the documents: an Anserini analyzer's, such as de, or several, de+en (default: in files, that of the "
        "documents; for other languages than English, the default systems are bm25 and those of a multilingual dense "
        "encoder, if one is installed)",
    )
    systems: list[str] = flag(
        [],
        f"{NAMES}; all: the usual ones of every kind (default: bm25, the SPLADE systems, those with IDF also joint and "
        "in hybrids; with --dense, also -near, dense, and BM25 + SPLADE + dense; with --adapt, also adapted ones)",
    )
    passages: int | None = flag(
        None,
        "search passages of this many words, and rank a document by its best passage; 0: whole documents (default: "
        f"{PASSAGE_WORDS}, if encoders would not read most of the text)",
        ge=0,
    )
    search: flags.Search = flag(
        "exact",
        "fast: search indexes of impacts in two steps, which finds nearly the same documents, in a fraction of the "
        "time where there are many; the indexes are almost three times as large",
    )
    depth: int = flag(DEPTH, "fuse or rerank this many best documents per query of each run", ge=1)
    alpha: float | None = flag(
        None,
        "weight of BM25 in joint systems (default: estimated from the documents, so that BM25 and SPLADE have the same "
        "spread of scores)",
        gt=0,
    )
    weights: list[float] = flag(
        [],
        "weights of a hybrid's parts, bm25 first; used for hybrids with as many parts (default: equal, but chosen from "
        "the documents for z-scores of BM25, SPLADE and dense)",
    )
    dense: str | None = flag(None, "for dense systems, those with -near, and trio: an encoder, such as minilm")
    dense_index: flags.DenseMethod = flags.DENSE_METHOD
    cross_encoder: str | None = flag(
        None, "for the system cross-encoder: a checkpoint folder or a Hugging Face model id"
    )
    rerank_minutes: float | None = flag(
        None, "time limit for the system cross-encoder: measures its speed, then lowers the depth to fit", gt=0
    )
    generated: str | None = flag(None, "for the system doct5query: folder written by `train generate`")
    adapt: bool = flag(
        False,
        "for adapted systems: first adapt SPLADE to the collection, with the encoder of --dense as a teacher, which is "
        "adapted too",
    )
    seed: Numbers = flag([42], "random seeds of --adapt and of `train`, one or more: each is a run", min_length=1)
    train: dict[str, list[dict[str, dict[str, Any]]]] = flag({}, "names of encoders, and the trainings that make them")
    remove_query: Literal["auto", "always", "never"] | None = flags.REMOVE_QUERY
    measures: list[str] = flags.MEASURES_FLAG
    device: str = flags.DEVICE
    precision: Literal["auto", "float32", "bfloat16", "int8"] = flags.DOCUMENT_PRECISION
    batch_size: int | None = flags.BATCH_SIZE
    threads: int = flags.THREADS
    no_raw: bool = flags.NO_RAW
    dry_run: bool = flag(False, "only print each step and whether it is up to date, or why it must run")
    verify: bool = flag(
        False, "fail if nDCG@10, which is measured too, differs from what the YAML file in index_configs/ expects"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("seed", "encoder"):
            values = getattr(self, name)
            if repeated := next((value for value in values if values.count(value) > 1), None):
                raise ValueError(f"{name} {repeated} occurs twice")
        if min(self.seed) < 0:
            raise ValueError(f"seed {min(self.seed)} is below 0")
        return self


class RunOptions(TypedDict, total=False):
    """The settings of a run that `cai.run` and `cai.index` take as keywords besides their parameters."""

    split: str | None
    strict: bool | None
    language: str | None
    passages: int | None
    search: flags.Search
    depth: int
    alpha: float | None
    weights: list[float]
    dense_index: flags.DenseMethod
    cross_encoder: str | None
    rerank_minutes: float | None
    generated: str | None
    adapt: bool
    seed: int
    remove_query: Literal["auto", "always", "never"] | None
    measures: list[str]
    device: str
    precision: Literal["auto", "float32", "bfloat16", "int8"]
    batch_size: int | None
    threads: int
    no_raw: bool
