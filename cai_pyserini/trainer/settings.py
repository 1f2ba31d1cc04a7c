"""The settings of every step, and what the steps record of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from cai_pyserini.core.artifact import write_text
from cai_pyserini.core.config import EncoderConfig, encoder_yaml
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import COLLECTION, DEVICE, PRECISION
from cai_pyserini.core.settings import AnyPath, Settings, build, flag, read_yaml

CONFIG = flag(None, "YAML file of settings; flags win over it")
TEXTS = flag(
    help="collections (a name in index_configs/, a YAML file or a BEIR folder), text files (.txt, a text per line) and "
    'JSONL files ({"text": …, "title": …}, title optional), .gz or not; read one after the other'
)
MIN_WORDS = flag(0, "leave out texts with fewer words (the paper: 128)", ge=0)
SEED = flag(42, "of all random draws", ge=0)
TRAINING_FILE = flag(help="training file to write, JSONL")
CHECKPOINT = flag(help="checkpoint folder to write")
UNRECORDED = {"output", "device", "log_steps", "save_steps", "config"}  # settings that no result depends on


class VocabularySettings(Settings):
    """Expand a checkpoint's vocabulary with the words of a corpus, as AdaLM does.

    The defaults are the paper's. The checkpoint comes with report.json (the new tokens) and entropy.png.
    """

    example: ClassVar[str] = (
        "python -m cai_pyserini.trainer vocabulary --corpus hpo --base splade-tiny --output models/vocabulary"
    )
    config: AnyPath | None = CONFIG
    corpus: list[str] = TEXTS
    base: str = flag(help="the encoder or masked language model to expand")
    output: AnyPath = CHECKPOINT
    increment: int = flag(3000, "tokens added per step", ge=1)
    stop: Literal["exhausted", "relative", "first"] = flag(
        "exhausted",
        "the last step: the corpus is exhausted, or entropy gains less than --epsilon of I_{i-1} or I_1 - I_0",
    )
    epsilon: float = flag(0.01, "for --stop relative (the paper: 0.01) or first (0.1, 0.05)", ge=0)
    max_steps: int = flag(0, "at most this many steps; 0: no limit", ge=0)
    min_words: int = MIN_WORDS


class TrainingSettings(Settings):
    """What every training can be told."""

    config: AnyPath | None = CONFIG
    base: str = flag(help="the encoder or model to train")
    output: AnyPath = CHECKPOINT
    batch_size: int = flag(help="examples per device and step", ge=1)
    learning_rate: float = flag(help="of AdamW, at the end of the warm-up; falls linearly afterwards", gt=0)
    epochs: float = flag(help="passes over the data", gt=0)
    max_steps: int = flag(0, "number of steps; 0: as many as the epochs take", ge=0)
    warmup_steps: int = flag(1000, "steps in which the learning rate rises from 0", ge=0)
    weight_decay: float = flag(0.0, "of AdamW", ge=0)
    accumulate: int = flag(1, "batches per step (gradient accumulation)", ge=1)
    seed: int = flag(42, "of the order of examples, dropout and masks", ge=0)
    precision: Literal["auto", "float32", "bfloat16"] = PRECISION
    device: Literal["auto", "cpu"] = flag("auto", "auto: all GPUs, if there are any")
    log_steps: int = flag(50, "steps between logged losses", ge=1)
    save_steps: int = flag(500, "save a checkpoint to resume from after this many steps, or two minutes", ge=1)


class PretrainSettings(TrainingSettings):
    """Continue the pretraining of a masked language model on a corpus.

    The paper: batches of 32 on each of 8 GPUs, one epoch. Interrupted, the same command continues.
    """

    example: ClassVar[str] = (
        "python -m cai_pyserini.trainer pretrain --corpus hpo --base models/vocabulary --output models/pretrained"
    )
    corpus: list[str] = TEXTS
    batch_size: int = flag(32, "sequences per device and step", ge=1)
    learning_rate: float = flag(5e-5, "of AdamW, at the end of the warm-up; falls linearly afterwards", gt=0)
    epochs: float = flag(1.0, "passes over the corpus", gt=0)
    max_length: int = flag(512, "tokens per sequence", ge=8)
    mask: float = flag(0.15, "share of the tokens that are masked", gt=0, lt=1)
    held_out: float = flag(0.02, "share of the sequences that measure the loss", gt=0, lt=1)
    min_words: int = MIN_WORDS


class PairSettings(TrainingSettings):
    """What training on queries with positive and negative documents can be told."""

    data: AnyPath = flag(help='JSONL of {"query", "positive", "negatives", "margins"}, .gz or not')
    loss: Literal["margin-mse", "in-batch"] = flag(
        "margin-mse", "Margin-MSE with a teacher's margins, or in-batch negatives (MNRL)"
    )
    negatives: int = flag(1, "per example; a line with more of them becomes several examples", ge=0)
    idf: AnyPath | None = flag(None, "folder of the idf stage: weights documents in SPLADE's score, tokens in a mean")
    learning_rate: float = flag(2e-5, "of AdamW, at the end of the warm-up; falls linearly afterwards", gt=0)
    epochs: float = flag(30.0, "passes over the data", gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.loss == "margin-mse" and not self.negatives:
            raise ValueError("loss margin-mse needs negatives: set negatives to 1 or more, or loss to in-batch")
        return self


class SpladeSettings(PairSettings):
    """Train SPLADE on queries with positive and negative documents.

    The defaults are the paper's. Interrupted, the same command continues.
    """

    example: ClassVar[str] = (
        "python -m cai_pyserini.trainer splade --data triples.jsonl --base models/pretrained --output models/hpo"
    )
    lambda_q: float | None = flag(None, "FLOPS weight of queries (default: 0.08, with in-batch 0.0006)", ge=0)
    lambda_d: float | None = flag(None, "FLOPS weight of documents (default: 0.1, with in-batch 0.0008)", ge=0)
    flops_warmup: int = flag(0, "steps in which the lambdas rise quadratically from 0", ge=0)
    max_document_length: int | None = flag(None, "tokens (default: the encoder's, 256)", ge=3)
    batch_size: int = flag(40, "queries per device and step", ge=1)


class DenseSettings(PairSettings):
    """Train a dense retriever on queries with positive and negative documents.

    The defaults are the paper's. Interrupted, the same command continues.
    """

    example: ClassVar[str] = (
        "python -m cai_pyserini.trainer dense --data triples.jsonl --base minilm --output models/dense"
    )
    scale: float = flag(20.0, "score = scale * cosine", gt=0)
    max_document_length: int = flag(300, "tokens", ge=3)
    batch_size: int = flag(64, "queries per device and step", ge=1)


class GenerateSettings(Settings):
    """Generate queries for the documents of a collection with a sequence-to-sequence model.

    The defaults are the paper's. Interrupted, the same command continues.
    """

    example: ClassVar[str] = (
        "python -m cai_pyserini.trainer generate --collection scifact "
        "--generator BeIR/query-gen-msmarco-t5-base-v1 --output generated/scifact"
    )
    config: AnyPath | None = CONFIG
    collection: str = COLLECTION
    generator: str = flag(help="checkpoint folder or hub id, such as BeIR/query-gen-msmarco-t5-base-v1")
    output: AnyPath = flag(help="BEIR folder to write")
    per_document: int = flag(3, "queries per document", ge=1)
    documents: int = flag(1_000_000, "generate for a random sample of this many documents, if there are more", ge=1)
    max_document_length: int = flag(350, "tokens of a document that are read", ge=3)
    max_query_length: int = flag(64, "tokens of a query, at most", ge=1)
    top_k: int = flag(25, "sample among this many most likely tokens", ge=1)
    top_p: float = flag(0.95, "and among those that have this probability together", gt=0, le=1)
    batch_size: int = flag(16, "documents per batch", ge=1)
    seed: int = SEED
    device: str = DEVICE


class MineSettings(Settings):
    """Make a training file from a collection's qrels, with negatives from runs."""

    example: ClassVar[str] = (
        "python -m cai_pyserini.trainer mine --collection scifact --runs bm25.trec splade.trec --output train.jsonl"
    )
    config: AnyPath | None = CONFIG
    collection: str = COLLECTION
    runs: list[AnyPath] = flag(help="TREC runs of the split's queries")
    output: AnyPath = TRAINING_FILE
    split: str = flag("train", "of the queries and qrels")
    depth: int = flag(50, "negatives are drawn from this many best documents of each run", ge=1)
    negatives: int = flag(5, "per query and positive, at most", ge=1)
    seed: int = SEED


class MsmarcoSettings(Settings):
    """Make a training file from MS MARCO's hard negatives and a cross-encoder's scores."""

    example: ClassVar[str] = (
        "python -m cai_pyserini.trainer msmarco --collection msmarco --hard-negatives msmarco-hard-negatives.jsonl.gz "
        "--scores scores/*.parquet --output triples.jsonl"
    )
    config: AnyPath | None = CONFIG
    collection: str = flag(help="the passages and queries: a name in index_configs/, a YAML file, or a BEIR folder")
    hard_negatives: AnyPath = flag(help="msmarco-hard-negatives.jsonl.gz")
    scores: list[AnyPath] = flag(help="Parquet or JSONL files of query_id, corpus_id, score")
    output: AnyPath = TRAINING_FILE
    split: str = flag("train", "of the queries")
    per_query: int = flag(30, "negatives per query, at most", ge=1)
    max_queries: int = flag(0, "use only this many queries; 0: all", ge=0)
    seed: int = SEED


class ScoreSettings(Settings):
    """Add a cross-encoder's margins to a training file. Interrupted, the same command continues."""

    example: ClassVar[str] = (
        "python -m cai_pyserini.trainer score --data negatives.jsonl "
        "--cross-encoder cross-encoder/ms-marco-MiniLM-L-6-v2 --output train.jsonl"
    )
    config: AnyPath | None = CONFIG
    data: AnyPath = flag(help='JSONL of {"query", "positive", "negatives"}, .gz or not')
    cross_encoder: str = flag(help="checkpoint folder or hub id, such as cross-encoder/ms-marco-MiniLM-L-6-v2")
    output: AnyPath = TRAINING_FILE
    device: str = DEVICE


def load_step[S: Settings](
    kind: type[S], path: Path | None, fixed: Mapping[str, Any], usual: Mapping[str, Any] | None = None
) -> S:
    """Settings of a step that a recipe runs: the defaults, then `usual`, a YAML file, and the `fixed` ones.

    Raises CaiError for a file that sets a fixed value.
    """
    values = read_yaml(path) if path else {}
    if clash := sorted(values.keys() & fixed.keys()):
        raise CaiError(f"{path}: {', '.join(clash)} cannot be set here")
    return build(kind, {**(usual or {}), **values, **fixed}, str(path or kind.__name__))


def recorded(settings: Settings, *without: str) -> dict[str, Any]:
    """The settings that a result depends on, for its recipe."""
    return settings.model_dump(exclude=UNRECORDED | set(without))


def inherited(encoder: EncoderConfig) -> dict[str, Any]:
    """The values of an encoder that a checkpoint trained from it keeps, for its recipe."""
    return encoder.model_dump(exclude={"name", "checkpoint", "revision", "range", "source", "idf"})


def write_encoder(base: EncoderConfig, folder: Path, idf: Path | None = None) -> None:
    """Write the encoder.yaml of a checkpoint in `folder`: that of its base, with another IDF, or none."""
    config = base.replace(name="", checkpoint=str(folder), revision=None, range=None, source=None, idf=idf and str(idf))
    text = encoder_yaml(config, folder).removeprefix("name: ''\n")  # its name is that of the folder
    write_text(folder / "encoder.yaml", text)
