"""Adapt a dense encoder without training it: learn a projection of its vectors.

    d' = normalized(d (I + weight * W)),   and q' likewise

W (width, width) starts at 0 and minimizes the sum of two losses over pseudo queries, for the documents of a step:

- the Kullback-Leibler divergence of the encoder's scores from a mixture's (see mixture.py), both divided by the
  standard deviation of the best scores: the mixture's for each query, the encoder's on average. It transfers what the
  other systems know.
- half the cross-entropy of the query's source against the other documents, where the source is the passage around the
  query without the query (inverse cloze task, Lee et al. 2019). It teaches matches that other systems miss for lack of
  common words.

Vectors are encoded once, so a step takes milliseconds. Held-out queries choose the weight (see choice.py).
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file, save_file

from cai_pyserini.core import artifact, files
from cai_pyserini.core.config import EncoderConfig, encoder_yaml
from cai_pyserini.core.terminal import progress
from cai_pyserini.trainer.adaptation_data import AdaptationData, examples_recipe
from cai_pyserini.trainer.mixture import Mixture

STAGE = "adapt: projection"
STEPS = 200
QUERIES = 48  # pseudo queries per step
CANDIDATES = 20  # best documents of each system per query of a step
RANDOM = 300  # random documents per step
TEMPERATURE = 0.05  # divides cosines in the cross-entropy
SHARE = 0.5  # weight of the cross-entropy
LEARNING_RATE = 1e-3  # decreases linearly to 0
WEIGHTS = (0.25, 0.5)  # candidate weights of W; the full W would lose what the encoder knew


def learn(data: AdaptationData, output: Path) -> Path:
    """Learn W from the training queries, and write it as a safetensors file."""
    made_from = artifact.recipe(STAGE, {"examples": artifact.digest(examples_recipe(data))})

    def write(path: Path) -> artifact.Stats:
        mixture, train = data.mixture, data.train
        texts = data.remainders(train, whole=False)
        remainders = np.zeros((len(data.sources), mixture.systems[-1].documents.shape[1]), np.float32)
        remainders[train] = data.encode(data.encoders[-1], texts)  # 0 for held-out queries
        save_file({"weight": learn_projection(mixture, train, data.sources, remainders, data.seed)}, path)
        return {"queries": len(train)}

    return artifact.make(output, made_from, write, folder=False)


def write_dense(encoder: EncoderConfig, learned: Path, weight: float, output: Path) -> None:
    """Write the dense encoder with this weight of W, unchanged for weight 0, as a folder with an encoder.yaml."""
    config = encoder.replace(name="")
    output.mkdir()
    if (projection := read_projection(learned, weight)) is not None:
        config = config.replace(projection=str(output / "projection.safetensors"))
        save_file({"weight": projection}, output / "projection.safetensors")
    files.write_text(output / "encoder.yaml", encoder_yaml(config, output))


def read_projection(learned: Path, weight: float) -> np.ndarray | None:
    """The projection with this weight of W, which is read from the file `learned`; None for weight 0."""
    return interpolated(load_file(learned)["weight"], weight) if weight else None


def interpolated(learned: np.ndarray, weight: float) -> np.ndarray:
    """The projection I + weight * W, float32 (width, width)."""
    return np.eye(len(learned), dtype=np.float32) + np.float32(weight) * learned


def learn_projection(
    mixture: Mixture, train: np.ndarray, sources: np.ndarray, remainders: np.ndarray, seed: int
) -> np.ndarray:
    """Learn W, float32 (width, width), for the dense vectors of the mixture's last system, from the queries with the
    numbers `train`. `sources` (queries,) are numbers of documents, `remainders` (queries, width) vectors."""
    draw = np.random.default_rng(seed)
    queries, documents = map(np.asarray, mixture.systems[-1])
    spread = float(mixture.spread[-2])  # the last one is the mixture's
    learned = torch.zeros(queries.shape[1], queries.shape[1], requires_grad=True)
    optimizer = torch.optim.AdamW([learned], LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
    for _ in progress(range(STEPS), STEPS, "projection", "steps"):
        drawn = draw.choice(train, min(QUERIES, len(train)), replace=False)
        best = np.union1d(mixture.best[:-1, drawn, :CANDIDATES], sources[drawn])
        others = np.union1d(best, draw.integers(len(documents), size=RANDOM))
        teacher = F.softmax(torch.from_numpy(mixture.standardized(drawn, others)), 1)
        projected = _project(queries[drawn], learned)
        cosines = projected @ _project(documents[others], learned).T
        columns = torch.from_numpy(np.searchsorted(others, sources[drawn]))
        remainder_cosines = (projected * _project(remainders[drawn], learned)).sum(1, keepdim=True)
        with_remainders = cosines.scatter(1, columns[:, None], remainder_cosines)
        divergence = F.kl_div(F.log_softmax(cosines / spread, 1), teacher, reduction="batchmean")
        (divergence + SHARE * F.cross_entropy(with_remainders / TEMPERATURE, columns)).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return learned.detach().numpy()


def _project(vectors: np.ndarray, learned: torch.Tensor) -> torch.Tensor:
    original = torch.from_numpy(vectors)
    return F.normalize(original + original @ learned)
