"""Each stage as an experiment calls it for a system. All return the path of what they make."""

import json
from dataclasses import replace
from pathlib import Path

from cai_pyserini.adapt.balance import balance
from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.settings import AdaptSettings
from cai_pyserini.beir.inputs import Inputs
from cai_pyserini.beir.systems import ADAPTED, SINGLE, System, parse_system
from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core.config import load_index_config
from cai_pyserini.encode.encode import encode
from cai_pyserini.encode.encoder import Role
from cai_pyserini.encode.projection import project_vectors
from cai_pyserini.evaluate.measures import evaluate
from cai_pyserini.expand.expand import expand
from cai_pyserini.fusion.fuse import fuse
from cai_pyserini.fusion.fusions import FUSIONS
from cai_pyserini.fusion.rerank import rerank
from cai_pyserini.fusion.rescore import Scorer, dense_scorer, impact_scorer, rescore, text_scorer
from cai_pyserini.idf.idf import compute
from cai_pyserini.impact.bm25 import Bm25
from cai_pyserini.impact.impacts import write_impacts
from cai_pyserini.index.bm25 import index_bm25
from cai_pyserini.index.dense import index_dense
from cai_pyserini.index.impact import index_impacts
from cai_pyserini.retrieval.search import search
from cai_pyserini.smooth.smooth import smooth
from cai_pyserini.vectors.shards import Vectors

SEED = 42  # of the queries that judge weights


def adapt_encoder(settings: AdaptSettings) -> Path:
    from cai_pyserini.adapt.adapt import adapt  # needs the extra `trainer`

    return adapt(settings)


def compute_idf(inputs: Inputs, system: System) -> Path:
    return compute(inputs.collection, inputs.encoder(system).checkpoint, inputs.layout.idf(system))


def encode_texts(inputs: Inputs, system: System, role: Role) -> Path:
    split, batch_size = inputs.experiment.split, inputs.experiment.batch_size
    encoder, output = inputs.encoder(system), inputs.vectors(system, role)
    if role == "documents" and system.name == f"{ADAPTED}dense" and encoder.config.overlap is None:
        return project_vectors(Vectors(encode_texts(inputs, SINGLE["dense"], role)), encoder, output)
    return encode(inputs.collection, encoder, output, role, split, batch_size)


def smooth_vectors(inputs: Inputs, system: System) -> Path:
    vectors = Vectors(inputs.vectors(replace(system, smooth=False), "documents"))
    dense = Vectors(inputs.vectors(near_by(system), "documents")) if inputs.experiment.dense else None
    return smooth(vectors, inputs.vectors(system, "documents"), dense, inputs.layout.idf(system))


def expand_documents(inputs: Inputs, system: System) -> Path:
    layout, dense = inputs.layout, near_by(system)
    vectors = Vectors(inputs.vectors(dense, "documents"))
    return expand(Vectors(layout.words, "words"), vectors, inputs.encoder(dense), layout.expansion(system))


def near_by(system: System) -> System:
    """The dense system that tells what is near the documents of a smooth one."""
    return parse_system(f"{ADAPTED * system.adapted}dense")


def weight_impacts(inputs: Inputs, system: System) -> Path:
    experiment, layout = inputs.experiment, inputs.layout
    config = inputs.encoder(system).config.replace(idf=str(layout.idf(system)) if system.idf else None)
    near = layout.expansion(system) if experiment.expands(system) else None
    bm25 = Bm25(layout.words, experiment.collection.k1, experiment.collection.b, experiment.alpha, near)
    return write_impacts(
        Vectors(inputs.vectors(system, "documents")),
        config,
        layout.impacts(system),
        bm25 if system.joint else None,
        inputs.encoder(system),
        experiment.threads,
    )


def build_index(inputs: Inputs, system: System) -> Path:
    output, experiment = inputs.layout.index(system), inputs.experiment
    if system.kind == "splade":
        collection = inputs.collection if experiment.raw else None
        return index_impacts(inputs.layout.impacts(system), output, collection, experiment.threads)
    if system.kind == "dense":
        return index_dense(Vectors(inputs.vectors(system, "documents")), output)
    generated = experiment.generated if system.kind == "doct5query" else None
    queries = open_collection(load_index_config(generated)) if generated else None
    return index_bm25(inputs.collection, output, experiment.threads, queries, experiment.raw)


def search_index(inputs: Inputs, system: System) -> Path:
    config = inputs.experiment.collection
    return search(
        inputs.layout.index(system),
        inputs.queries(system),
        inputs.layout.run(system),
        hits=config.hits,
        remove_query=inputs.remove_query,
        k1=config.k1,
        b=config.b,
        threads=inputs.experiment.threads,
        tag=system.name,
        passages=config.passages is not None,
    )


def rerank_run(inputs: Inputs, system: System) -> Path:
    experiment, (first,) = inputs.experiment, system.parts
    return rerank(
        inputs.layout.run(first),
        inputs.topics,
        inputs.collection,
        inputs.cross_encoder,
        inputs.layout.run(system),
        experiment.depth,
        experiment.device,
        "auto" if experiment.precision == "int8" else experiment.precision,  # which is for documents alone
        system.name,
    )


def rescore_run(inputs: Inputs, hybrid: System, part: System) -> Path:
    layout = inputs.layout
    others = [layout.run(other) for other in hybrid.parts if other != part]
    output = layout.rescored(hybrid, part)
    return rescore(layout.run(part), others, _scorer(inputs, part), output, inputs.experiment.depth, part.name)


def _scorer(inputs: Inputs, system: System) -> Scorer:
    """A function that scores documents for queries as the system does."""
    config, index = inputs.experiment.collection, inputs.layout.index(system)
    if system.searches_text:
        return text_scorer(index, inputs.topics, config.k1, config.b)
    if system.kind == "dense":
        return dense_scorer(inputs.vectors(system, "documents"), inputs.queries(system))
    vectors, layout = inputs.vectors(system, "documents"), inputs.layout
    return impact_scorer(index, vectors, layout.words, layout.expansion(system), inputs.queries(system))


def balance_weights(inputs: Inputs) -> Path:
    experiment, layout = inputs.experiment, inputs.layout
    splade, dense = (inputs.encoder(SINGLE[kind]).config for kind in ("splade", "dense"))
    folder = layout.folder / "vectors"
    material = Material(
        experiment.collection, splade, dense, folder, 0, SEED, experiment.device, precision=experiment.precision
    )
    return balance(material, layout.weights)


def fuse_parts(inputs: Inputs, system: System) -> Path:
    layout, experiment = inputs.layout, inputs.experiment
    runs = [layout.rescored(system, part) if system.exact else layout.run(part) for part in system.parts]
    depth = experiment.depth
    if system.exact and FUSIONS[system.fusion].missing == "zero":
        depth *= len(runs)  # rescored runs contain the union of all parts' best documents, all of which are fused
    weights = experiment.weights_of(system)
    if experiment.balances(system):
        weights = tuple(json.loads(layout.weights.read_text(encoding="utf-8")).values())
    hits = experiment.collection.hits
    return fuse(runs, layout.run(system), system.fusion, depth, hits, system.name, weights)


def evaluate_run(inputs: Inputs, system: System) -> Path:
    return evaluate(inputs.layout.run(system), inputs.qrels or {}, inputs.layout.evaluation(system))
