"""GPL (Wang et al. 2022): adapt SPLADE or a dense encoder with generated queries and a cross-encoder's margins.

    generate queries ──► search them with each retriever ──► draw negatives ──► a cross-encoder's margins ──► Margin-MSE

Every step skips finished work, and keeps its result in `<output>.steps`. The defaults are the paper's (Iida & Okazaki
2022, section 4 and Appendix D).
"""

from collections.abc import Sequence
from functools import partial
from math import ceil
from pathlib import Path

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig, load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.steps import unchanged
from cai_pyserini.experiments.execute import execute
from cai_pyserini.experiments.experiment import Experiment
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.settings import GplSettings
from cai_pyserini.experiments.systems import parse_system
from cai_pyserini.models.checkpoint import load_checkpoint
from cai_pyserini.models.encoder import Encoder
from cai_pyserini.models.rerankers import require_reranker
from cai_pyserini.trainer.examples import count
from cai_pyserini.trainer.files import mine, score
from cai_pyserini.trainer.generate import STAGE, generate
from cai_pyserini.trainer.pairs import base_encoder, train
from cai_pyserini.trainer.settings import (
    DenseSettings,
    GenerateSettings,
    MineSettings,
    ScoreSettings,
    SpladeSettings,
    load_step,
)
from cai_pyserini.trainer.training import require_one_gpu, total_steps

TRAINING = {"batch_size": 24, "max_steps": 140_000, "warmup": 0.00714, "max_document_length": 350}  # Appendix D


def gpl(settings: GplSettings) -> Path:
    """Adapt a checkpoint, and write it."""
    require_one_gpu(settings.device)
    folder, device = settings.output.with_name(f"{settings.output.name}.steps"), settings.device
    encoders = [load_encoder(spec) for spec in (settings.base, *settings.retrievers)]
    common = {"seed": settings.seed, "device": device}
    fixed = {"collection": settings.collection, "generator": settings.generator, "output": folder / "generated"}
    generation = load_step(GenerateSettings, settings.generate, common | fixed)
    fixed = {"base": settings.base, "output": settings.output, "data": folder / "train.jsonl", "loss": "margin-mse"}
    kind: type[DenseSettings | SpladeSettings] = DenseSettings if encoders[0].kind == "dense" else SpladeSettings
    training = load_step(kind, settings.train, common | fixed, TRAINING)
    for encoder in encoders:
        Encoder(encoder, device).require_loadable("documents", "queries")
    named = _by_name(encoders)
    base_encoder(training)
    require_reranker(load_checkpoint(settings.cross_encoder))

    generated = unchanged(partial(generate, generation))
    runs = [_search(generated, encoder, folder / "runs" / name, device) for name, encoder in named.items()]
    negatives = _negatives(training, artifact.require(generated, STAGE).stats["queries"], settings.depth * len(runs))
    fixed = {"collection": str(generated), "trec": runs, "output": folder / "negatives.jsonl"}
    fixed |= {"negatives": negatives, "depth": settings.depth, "seed": settings.seed}
    mined = unchanged(partial(mine, load_step(MineSettings, None, fixed)))
    count(mined, margins=False, negatives=training.negatives)  # before hours of scoring
    scoring = ScoreSettings(data=mined, cross_encoder=settings.cross_encoder, output=training.data, device=device)
    unchanged(partial(score, scoring))
    return unchanged(partial(train, training))


def _negatives(settings: DenseSettings | SpladeSettings, queries: int, candidates: int) -> int:
    """The number of negatives per query with which the training repeats no pair, if there are enough candidates."""
    pairs = settings.batch_size * settings.accumulate * total_steps(settings, queries) * settings.negatives
    negatives = min(candidates, max(1, ceil(pairs / queries)))
    return negatives + -negatives % settings.negatives


def _by_name(encoders: Sequence[EncoderConfig]) -> dict[str, EncoderConfig]:
    """The encoders by the names of their run folders: the encoder's name, with a part of its digest if several have the
    same name. Raises CaiError for an encoder that is given twice."""
    named: dict[str, EncoderConfig] = {}
    for config in encoders:
        encoder = Encoder(config)
        digest = artifact.digest([encoder.identity("documents"), encoder.identity("queries"), config.query])
        is_shared = sum(other.name == config.name for other in encoders) > 1
        name = f"{config.name}-{digest[:8]}" if is_shared else config.name
        if name in named:
            raise CaiError(f"retriever {config.checkpoint} is given twice, or is the base: leave it out")
        named[name] = config
    return named


def _search(generated: Path, encoder: EncoderConfig, folder: Path, device: str) -> Path:
    """Search the generated queries in a run folder; returns the run."""
    name = "dense" if encoder.kind == "dense" else "splade" if encoder.query == "splade" else "splade-doc"
    collection, system = load_index_config(str(generated)).replace(split="train"), parse_system(name)
    experiment = Experiment(collection=collection, encoder=encoder, device=device, dense=encoder)
    run = RunFolder(folder, experiment)
    execute(run, [system])
    return system.ranking(run).output
