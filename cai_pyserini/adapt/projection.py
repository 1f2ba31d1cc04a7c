"""Adapt a dense encoder without training it: learn a projection of its vectors.

    d' = normalized(d (I + weight * W)),   and q' likewise

W (width, width) starts at 0 and minimizes, over pseudo queries, the Kullback-Leibler divergence of the encoder's
scores of a step's documents from those of a mixture (adapt.mixture). Both are in units of the deviation of the best
scores: the mixture's for each query, the encoder's on average. Vectors are encoded once, so a step takes milliseconds,
and so does everything that is tried with a projection afterwards.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file

from cai_pyserini.adapt.choice import Choice
from cai_pyserini.adapt.mixture import Mixture, Products
from cai_pyserini.core.artifact import write_text
from cai_pyserini.core.config import encoder_yaml
from cai_pyserini.models.dense import project

STEPS = 100
QUERIES = 48  # per step
CANDIDATES = 20  # the best documents of each system for each of a step's queries
RANDOM = 300  # further documents of a step
LEARNING_RATE = 1e-3  # decreases linearly to 0
WEIGHT = 0.5  # of W in the result: as of new weights in their mean with the old ones


def adapt_dense(choice: Choice, output: Path) -> str:
    """Write the adapted dense encoder, or the old one if the judges like that better, as a folder with an encoder.yaml.
    Returns what was decided, and why."""
    material, dense = choice.material, choice.material.products[-1]
    projection = learn_projection(material.mixture, dense, material.train, material.seed)
    before = choice.dense(dense)
    after = choice.dense(Products(project(dense.queries, projection), project(dense.documents, projection)))
    config, file = material.encoders[-1].config.replace(name=""), output / "projection.safetensors"
    output.mkdir()
    if after > before:
        save_file({"weight": projection}, file)
        config = config.replace(projection=str(file))
    write_text(output / "encoder.yaml", encoder_yaml(config, output))
    chosen = "a projection of dense vectors" if after > before else "dense vectors stay as they are"
    return f"{chosen} (agreement with {choice.judge}: {before:.3f} before, {after:.3f} after)"


def learn_projection(mixture: Mixture, dense: Products, train: np.ndarray, seed: int) -> np.ndarray:
    """The projection I + WEIGHT * W, float32 (width, width), for the vectors of `dense`, the last system of the
    mixture, learned from the queries with the numbers `train`."""
    draw = np.random.default_rng(seed)
    of_queries, of_documents = np.asarray(dense.queries), np.asarray(dense.documents)
    spread = float(mixture.spread[-2])  # the last is that of the mixture itself
    learned = torch.zeros(of_queries.shape[1], of_queries.shape[1], requires_grad=True)
    optimizer = torch.optim.AdamW([learned], LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
    for _ in range(STEPS):
        queries = draw.choice(train, min(QUERIES, len(train)), replace=False)
        best = mixture.best[:-1, queries, :CANDIDATES]
        documents = np.union1d(best, draw.integers(len(of_documents), size=RANDOM))
        teacher = torch.from_numpy(mixture.standardized(queries, documents))
        cosines = _project(of_queries[queries], learned) @ _project(of_documents[documents], learned).T
        scores = F.log_softmax(cosines / spread, 1)
        F.kl_div(scores, F.softmax(teacher, 1), reduction="batchmean").backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return np.eye(len(learned), dtype=np.float32) + WEIGHT * learned.detach().numpy()


def _project(vectors: np.ndarray, learned: torch.Tensor) -> torch.Tensor:
    plain = torch.from_numpy(vectors)
    return F.normalize(plain + plain @ learned)
