"""Adapt a dense encoder without training it: learn a projection of its vectors.

    d' = normalized(d (I + weight * W)),   and q' likewise

W (width, width) starts at 0 and minimizes the sum of two losses over pseudo queries, for the documents of a step:

- the Kullback-Leibler divergence of the encoder's scores from those of a mixture (adapt.mixture), both in units of the
  deviation of the best scores: the mixture's for each query, the encoder's on average. It learns what the others know.
- half the cross-entropy of the query's source against the others, where the source is the passage around the query
  without the query (inverse cloze task, Lee et al. 2019). It learns what the others cannot find, by words.

Vectors are encoded once, so a step takes milliseconds. The weight is what the judges like best (adapt.choice).
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file, save_file

from cai_pyserini.adapt.examples import recipe
from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.mixture import Mixture
from cai_pyserini.core import artifact, files
from cai_pyserini.core.config import EncoderConfig, encoder_yaml
from cai_pyserini.core.terminal import progress

STAGE = "adapt: projection"
STEPS = 200
QUERIES = 48  # pseudo queries per step
CANDIDATES = 20  # the best documents of each system for each of a step's queries
RANDOM = 300  # further documents of a step
TEMPERATURE = 0.05  # the temperature of cosines in the cross-entropy
SHARE = 0.5  # weight of the cross-entropy
LEARNING_RATE = 1e-3  # decreases linearly to 0
WEIGHTS = (0.25, 0.5)  # the weights of W that are tried; W alone would forget what the encoder knew


def learn(material: Material, output: Path) -> Path:
    """Write W as a safetensors file, learned from the pseudo queries that train."""
    made_from = artifact.recipe(STAGE, {"examples": artifact.digest(recipe(material))})

    def write(path: Path) -> artifact.Stats:
        mixture, train = material.mixture, material.train
        texts = material.remainders(train, whole=False)
        remainders = np.zeros((len(material.sources), mixture.systems[-1].documents.shape[1]), np.float32)
        remainders[train] = material.encode(material.encoders[-1], texts)  # of the other pseudo queries, 0
        save_file({"weight": learn_projection(mixture, train, material.sources, remainders, material.seed)}, path)
        return {"queries": len(train)}

    return artifact.make(output, made_from, write, folder=False)


def write_dense(encoder: EncoderConfig, learned: Path, weight: float, output: Path) -> None:
    """Write the dense encoder with this weight of W, or as it is with 0, as a folder with an encoder.yaml."""
    config = encoder.replace(name="")
    output.mkdir()
    if (projection := read_projection(learned, weight)) is not None:
        config = config.replace(projection=str(output / "projection.safetensors"))
        save_file({"weight": projection}, output / "projection.safetensors")
    files.write_text(output / "encoder.yaml", encoder_yaml(config, output))


def read_projection(learned: Path, weight: float) -> np.ndarray | None:
    """The projection with this weight of W, which is in the file `learned`; None with 0."""
    return mixed(load_file(learned)["weight"], weight) if weight else None


def mixed(learned: np.ndarray, weight: float) -> np.ndarray:
    """The projection I + weight * W, float32 (width, width)."""
    return np.eye(len(learned), dtype=np.float32) + np.float32(weight) * learned


def learn_projection(
    mixture: Mixture, train: np.ndarray, sources: np.ndarray, remainders: np.ndarray, seed: int
) -> np.ndarray:
    """W, float32 (width, width), for the dense vectors of the mixture's last system, learned from the queries with the
    numbers `train`. `sources` (queries,) are the numbers of documents, `remainders` (queries, width) are vectors."""
    draw = np.random.default_rng(seed)
    queries, documents = map(np.asarray, mixture.systems[-1])
    spread = float(mixture.spread[-2])  # the last is that of the mixture itself
    learned = torch.zeros(queries.shape[1], queries.shape[1], requires_grad=True)
    optimizer = torch.optim.AdamW([learned], LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
    for _ in progress(range(STEPS), STEPS, "projection", "step"):
        drawn = draw.choice(train, min(QUERIES, len(train)), replace=False)
        best = np.union1d(mixture.best[:-1, drawn, :CANDIDATES], sources[drawn])
        others = np.union1d(best, draw.integers(len(documents), size=RANDOM))
        teacher = F.softmax(torch.from_numpy(mixture.standardized(drawn, others)), 1)
        of_queries = _project(queries[drawn], learned)
        cosines = of_queries @ _project(documents[others], learned).T
        places = torch.from_numpy(np.searchsorted(others, sources[drawn]))
        of_sources = (of_queries * _project(remainders[drawn], learned)).sum(1, keepdim=True)
        hidden = cosines.scatter(1, places[:, None], of_sources)
        divergence = F.kl_div(F.log_softmax(cosines / spread, 1), teacher, reduction="batchmean")
        (divergence + SHARE * F.cross_entropy(hidden / TEMPERATURE, places)).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return learned.detach().numpy()


def _project(vectors: np.ndarray, learned: torch.Tensor) -> torch.Tensor:
    plain = torch.from_numpy(vectors)
    return F.normalize(plain + plain @ learned)
