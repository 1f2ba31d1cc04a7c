"""The settings of the training commands and of adaptation, and which of them go into recipes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from cai_pyserini.core.config import EncoderConfig, encoder_yaml
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import write_text
from cai_pyserini.core.flags import COLLECTION, COLLECTION_TEXT, DEVICE, DOCUMENT_PRECISION, PRECISION
from cai_pyserini.core.settings import AnyPath, FileSettings, Settings, build, flag, read_yaml
from cai_pyserini.runs.fusions import DEPTH

NDCG = "nDCG@10"
RUN = "cai-pyserini train"
Loss = Literal["margin-mse", "in-batch"]
Scheduler = Literal[
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"
]
TEXTS = flag(
    help=f"what to train on, one or more: collections ({COLLECTION_TEXT} in Parquet, CSV or TSV), "
    'text files (.txt, one text per line) and JSONL files ({"text": …, "title": …}, title optional), gzipped or not'
)
MIN_WORDS = flag(0, "leave out texts with fewer words; the paper: 128 (default: 0)", ge=0)
SEED = flag(42, "random seed", ge=0)
TRAINING_FILE = flag(help="output file, JSONL to train with")
CHECKPOINT = flag(help="output folder, the checkpoint")
FRACTION = "fraction of the steps during which"
WARMUP = f"{FRACTION} the learning rate rises linearly from 0"
PAPER_WARMUP = f"{WARMUP}; the paper: 1,000 steps"
LEARNING_RATE = "learning rate of AdamW after the warm-up; see --scheduler"
UNRECORDED = {"output", "device", "log_steps", "save_seconds", "config", "report_to", "keep"}  # shape no result
IDENTIFIED = {"idf", "eval_data", "eval_collection"}  # recorded as trainer.evaluation.identities
EVALUATION = {"eval_steps", "eval_split", "eval_documents"}  # shape a result only with keep_best
IF_SET = {"scheduler", "keep_best", "patience"}  # recorded only if set


class VocabularySettings(FileSettings):
    """Expand a checkpoint's vocabulary with the words of a corpus, as AdaLM does.

    The defaults are the paper's. The output also has report.json (the new tokens) and entropy.png.
    """

    example = f"{RUN} vocabulary --corpus hpo --base splade-tiny --output models/vocabulary"
    corpus: list[str] = TEXTS
    base: str = flag(help="encoder or masked language model to expand")
    output: AnyPath = CHECKPOINT
    increment: int = flag(3000, "tokens to add in each step", ge=1)
    max_steps: int = flag(0, "largest number of steps (default: 0, no limit)", ge=0)
    min_words: int = MIN_WORDS


class TrainingSettings(FileSettings):
    """The settings that all trainings share."""

    base: str = flag(help="encoder or model to start from")
    output: AnyPath = CHECKPOINT
    batch_size: int = flag(help="examples in each batch", ge=1)
    learning_rate: float = flag(help=LEARNING_RATE, gt=0)
    epochs: float = flag(help="passes over the data", gt=0)
    max_steps: int = flag(0, "number of steps, instead of epochs (default: 0, as many as --epochs takes)", ge=0)
    scheduler: Scheduler | None = flag(None, "learning rate after the warm-up (default: linear; constant: no warm-up)")
    warmup: float = flag(0.05, WARMUP, ge=0, lt=1)
    weight_decay: float = flag(0.0, "weight decay of AdamW (default: 0)", ge=0)
    dropout: float | None = flag(None, "dropout probability (default: the checkpoint's)", ge=0, lt=1)
    accumulate: int = flag(1, "batches per step (gradient accumulation)", ge=1)
    seed: int = flag(42, "random seed for the order of examples, dropout and masks", ge=0)
    precision: Literal["auto", "float32", "bfloat16"] = PRECISION
    device: str = DEVICE
    log_steps: int = flag(50, "steps between logs of the loss", ge=1)
    save_seconds: float = flag(120.0, "seconds between checkpoints to resume from", ge=0)
    keep: int = flag(0, "checkpoints to keep in <output>.checkpoints, the last and the best (default: 0)", ge=0)
    report_to: list[str] = flag([], "also log to these, as transformers calls them: tensorboard, wandb, mlflow, …")
    eval_steps: int = flag(0, "steps between evaluations (default: 0, only before the first and after the last)", ge=0)
    keep_best: Literal["loss", "nDCG@10"] | None = flag(None, "end with the best weights by this (default: the last)")
    patience: int | None = flag(None, "stop after this many evaluations without a new best (default: never)", ge=1)

    @model_validator(mode="after")
    def _check_evaluation(self) -> Self:
        data = getattr(self, "eval_data", "held_out")  # a part of the corpus in a pretraining
        collection = getattr(self, "eval_collection", None)
        if self.keep_best and not (data if self.keep_best == "loss" else collection):
            raise ValueError("keep_best loss needs eval_data, and keep_best nDCG@10 needs eval_collection")
        if self.keep_best and not self.eval_steps:
            raise ValueError("keep_best needs eval_steps, the steps between evaluations")
        if self.patience and not self.keep_best:
            raise ValueError("patience needs keep_best, by which evaluations are compared")
        if self.eval_steps and not data and not collection:
            raise ValueError("eval_steps needs eval_data or eval_collection")
        return self


class PretrainSettings(TrainingSettings):
    """Continue the pretraining of a masked language model on a corpus.

    The paper trains for one epoch with 8 batches of 32 per step (--accumulate 8). If interrupted, run the same command
    again to continue.
    """

    example = f"{RUN} pretrain --corpus hpo --base models/vocabulary --output models/pretrained"
    corpus: list[str] = TEXTS
    batch_size: int = flag(32, "sequences in each batch", ge=1)
    learning_rate: float = flag(5e-5, LEARNING_RATE, gt=0)
    epochs: float = flag(1.0, "passes over the corpus", gt=0)
    max_length: int = flag(512, "tokens per sequence", ge=8)
    mask: float = flag(0.15, "fraction of the tokens that are masked", gt=0, lt=1)
    held_out: float = flag(0.02, "fraction of the sequences held out to measure the loss", gt=0, lt=1)
    min_words: int = MIN_WORDS


class PairSettings(TrainingSettings):
    data: AnyPath = flag(help='JSONL of {"query", "positive", "negatives", "margins", "ids"}, gzipped or not')
    loss: Loss = flag(
        "margin-mse", "Margin-MSE with a teacher's margins, or cross-entropy with in-batch negatives (MNRL)"
    )
    negatives: int = flag(1, "negatives per example; if a line has more, every epoch takes the next ones", ge=0)
    idf: AnyPath | None = flag(None, "folder of the idf stage: weight SPLADE's documents, or tokens in dense means")
    learning_rate: float = flag(2e-5, LEARNING_RATE, gt=0)
    epochs: float = flag(30.0, "passes over the lines of the training file", gt=0)
    eval_data: AnyPath | None = flag(None, "held-out file like --data, for the ranking loss on it")
    eval_collection: str | None = flag(None, f"evaluate nDCG@10 on judged queries: {COLLECTION_TEXT}")
    eval_split: str = flag("dev", "split of the evaluation's queries and qrels; never the one to report", min_length=1)
    eval_documents: int = flag(5000, "documents of the evaluation: the relevant ones and a sample of others", ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.loss == "margin-mse" and not self.negatives:
            raise ValueError("loss margin-mse needs negatives: set negatives to 1 or more, or loss to in-batch")
        return self


class SpladeSettings(PairSettings):
    """Train SPLADE on queries with positive and negative documents.

    The defaults are the paper's. If interrupted, run the same command again to continue.
    """

    example = f"{RUN} splade --data triples.jsonl --base models/pretrained --output models/hpo"
    lambda_q: float | None = flag(
        None, "FLOPS regularizer's weight for queries (default: 0.08; in-batch: 0.0006)", ge=0
    )
    lambda_d: float | None = flag(
        None, "FLOPS regularizer's weight for documents (default: 0.1; in-batch: 0.0008)", ge=0
    )
    flops_warmup: float = flag(0.0, f"{FRACTION} the lambdas rise quadratically from 0 (default: 0)", ge=0, lt=1)
    max_document_length: int | None = flag(None, "tokens read per document (default: the encoder's, often 256)", ge=3)
    sampled_terms: int = flag(
        0, "train faster: of documents, only the terms of the batch's queries and a sample of this many others", ge=0
    )
    batch_size: int = flag(40, "queries in each batch", ge=1)
    warmup: float = flag(0.00265, PAPER_WARMUP, ge=0, lt=1)


class DenseSettings(PairSettings):
    """Train a dense retriever on queries with positive and negative documents.

    The defaults are the paper's. If interrupted, run the same command again to continue.
    """

    example = f"{RUN} dense --data triples.jsonl --base minilm --output models/dense"
    scale: float = flag(20.0, "factor by which the cosine of query and document is multiplied for the score", gt=0)
    max_document_length: int = flag(300, "tokens read per document", ge=3)
    batch_size: int = flag(64, "queries in each batch", ge=1)
    warmup: float = flag(0.00424, PAPER_WARMUP, ge=0, lt=1)


class AdaptSettings(FileSettings):
    """Adapt SPLADE to a collection, using only its documents.

    If interrupted, run the same command again to continue. docs/how-to/adapt.md explains the steps.
    """

    example = "cai-pyserini adapt --collection hpo --base splade-tiny --output models/hpo"
    collection: str = COLLECTION
    base: str = flag(help="SPLADE encoder to start from")
    output: AnyPath = flag(help="output folder, the checkpoint; the results of the steps are kept in <output>.steps")
    dense: str | None = flag(None, "use this dense encoder as teacher, such as minilm, and adapt it too")
    queries: int = flag(5000, "maximum number of pseudo queries for training", ge=1)
    weight: float | None = flag(
        None, "weight of the new checkpoints in the mean (default: 0, 0.3 or 0.4, by held-out queries)", gt=0, le=1
    )
    alpha: float | None = flag(None, "weight of BM25 in simulated joint systems (default: estimated)", gt=0)
    weights: list[float] = flag([], "weights of BM25, SPLADE and dense in the simulated fusion (default: chosen)")
    depth: int = flag(DEPTH, "fuse this many best documents per query of each run in the simulated fusion", ge=1)
    splade: AnyPath | None = flag(None, "YAML file with settings for the SPLADE training")
    distil: AnyPath | None = flag(None, "with --dense, YAML file with settings for the training with a teacher")
    vectors: AnyPath | None = flag(None, "folder for the vectors before adaptation (default: in <output>.steps)")
    seed: int = SEED
    device: str = DEVICE
    precision: Literal["auto", "float32", "bfloat16", "int8"] = DOCUMENT_PRECISION
    dry_run: bool = flag(False, "only print the steps, and for each whether it is up to date, or why it must run")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.distil and not self.dense:
            raise ValueError("distil needs a teacher: the setting dense")
        if not self.dense and (self.weights or self.depth != DEPTH):
            name = "weights" if self.weights else "depth"
            raise ValueError(f"{name} applies to the fusion with a dense encoder: add the setting dense")
        if self.weights and (len(self.weights) != 3 or min(self.weights) <= 0):
            raise ValueError("weights: give three positive numbers, for BM25, SPLADE and dense")
        return self


class GenerateSettings(FileSettings):
    """Generate queries for the documents of a collection with a sequence-to-sequence model.

    The defaults are the paper's. If interrupted, run the same command again to continue.
    """

    example = (
        f"{RUN} generate --collection scifact --generator BeIR/query-gen-msmarco-t5-base-v1 --output generated/scifact"
    )
    collection: str = COLLECTION
    generator: str = flag(help="checkpoint folder or Hugging Face id, such as BeIR/query-gen-msmarco-t5-base-v1")
    output: AnyPath = flag(help="output folder, in BEIR's format")
    per_document: int = flag(3, "queries per document", ge=1)
    documents: int = flag(1_000_000, "if there are more documents, use a random sample of this many", ge=1)
    max_document_length: int = flag(350, "tokens read per document", ge=3)
    max_query_length: int = flag(64, "maximum length of a query in tokens", ge=1)
    top_k: int = flag(25, "sample from this many most likely tokens (top-k sampling)", ge=1)
    top_p: float = flag(0.95, "sample from the most likely tokens with this total probability (nucleus)", gt=0, le=1)
    batch_size: int = flag(16, "documents of full length per batch; another number draws other queries", ge=1)
    seed: int = SEED
    device: str = DEVICE


class MineSettings(FileSettings):
    """Make a training file from a collection's qrels, with negatives from runs."""

    example = f"{RUN} mine --collection scifact --trec bm25.trec splade.trec --output train.jsonl"
    collection: str = COLLECTION
    trec: list[AnyPath] = flag(help="TREC runs of the queries of --split")
    output: AnyPath = TRAINING_FILE
    split: str = flag("train", "split of the queries and qrels to use")
    depth: int = flag(50, "draw negatives from this many best documents of each run", ge=1)
    negatives: int = flag(5, "maximum number of negatives per query and positive", ge=1)
    seed: int = SEED


class MsmarcoSettings(FileSettings):
    """Make a training file from MS MARCO's hard negatives and a cross-encoder's scores."""

    example = (
        f"{RUN} msmarco --collection msmarco --hard-negatives msmarco-hard-negatives.jsonl.gz "
        "--scores scores/*.parquet --output triples.jsonl"
    )
    collection: str = flag(help=f"passages and queries: {COLLECTION_TEXT}")
    hard_negatives: AnyPath = flag(help="msmarco-hard-negatives.jsonl.gz of sentence-transformers")
    scores: list[AnyPath] = flag(help="cross-encoder scores: Parquet or JSONL files with query_id, corpus_id and score")
    output: AnyPath = TRAINING_FILE
    split: str = flag("train", "split of the queries to use")
    per_query: int = flag(30, "maximum number of negatives per query", ge=1)
    max_queries: int = flag(0, "use only this many queries (default: 0, all)", ge=0)
    seed: int = SEED


class ScoreSettings(FileSettings):
    """Add a cross-encoder's margins to a training file.

    If interrupted, run the same command again to continue.
    """

    example = (
        f"{RUN} score --data negatives.jsonl --cross-encoder cross-encoder/ms-marco-MiniLM-L-6-v2 --output train.jsonl"
    )
    data: AnyPath = flag(help='training file: JSONL of {"query", "positive", "negatives"}, gzipped or not')
    cross_encoder: str = flag(help="checkpoint folder or Hugging Face id, such as cross-encoder/ms-marco-MiniLM-L-6-v2")
    output: AnyPath = TRAINING_FILE
    device: str = DEVICE


def load_step[S: Settings](
    kind: type[S], path: Path | None, fixed: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> S:
    """The settings of a step of another command: `fixed` overrides the YAML file, which overrides `defaults`.

    A file's number of epochs overrides a default number of steps. Raises CaiError if the file sets a fixed value.
    """
    values = read_yaml(path) if path else {}
    if clash := sorted(values.keys() & fixed.keys()):
        raise CaiError(f"{path}: {', '.join(clash)} cannot be set here")
    values = {"max_steps": 0} | values if "epochs" in values else values
    return build(kind, {**(defaults or {}), **values, **fixed}, path or kind.__name__)


def recorded(settings: Settings, *exclude: str) -> dict[str, Any]:
    """The settings that a result depends on, for its recipe, except those in `exclude`."""
    unused = {name for name in IF_SET if getattr(settings, name, None) is None}
    if "keep_best" in unused:
        unused |= EVALUATION
    return settings.model_dump(exclude=UNRECORDED | IDENTIFIED | unused | set(exclude))


def inherited(encoder: EncoderConfig) -> dict[str, Any]:
    """The settings that a checkpoint inherits from the encoder that it is trained from, for its recipe."""
    exclude = {"name", "checkpoint", "revision", "range", "source", "idf", "projection"}
    return encoder.model_dump(exclude=exclude, exclude_defaults=True)


def write_encoder(base: EncoderConfig, folder: Path, idf: Path | None = None) -> None:
    """Write the encoder.yaml of the checkpoint in `folder`: its base's, with this IDF or none, and without the
    projection, which belongs to the weights of the base."""
    config = base.replace(
        name="", checkpoint=str(folder), revision=None, range=None, source=None, idf=idf and str(idf), projection=None
    )
    write_text(folder / "encoder.yaml", encoder_yaml(config, folder))
