"""Queries in any language to the SPLADE index of an English collection, without words or models of that language.

A connector (after MILCO, Nguyen et al. 2025) puts a learned layer t between the token states h_i of a frozen
multilingual encoder and the frozen decoder E, c of an English SPLADE; the state of the text as a whole, x, is one more:

    w_v = max over i of log(1 + relu(<e_v, t(h_i, x)> + c_v)),    t(h, x) = LayerNorm(C GELU(A h + B x) + D h)

It is trained on the English titles of the collection, with the SPLADE vectors of the same titles as targets, then also
on names of other terms and pairs of other texts (--pairs: lines of language, text and English, such as the entries of
dictionaries). Measured with names of HPO's terms (--names: LANGUAGE.tsv, lines of id and name) that were never trained
on, nor any other name of these terms but their English titles.
"""

from collections.abc import Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
import torch
from scipy.sparse import csr_matrix, diags, vstack
from torch import nn

from cai_pyserini.collections.hpo import Hpo
from cai_pyserini.core.config import load_encoder
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import Idf
from cai_pyserini.models.splade import load_masked_lm
from cai_pyserini.runs.seeds import over_seeds
from cai_pyserini.runs.significance import p_text

LENGTH = 24  # tokens of a text
HIDDEN, DROPOUT, RATE, WARM_UP, BATCH = 512, 0.1, 2e-3, 200, 64
PIECES = 1500  # random word pieces of a batch, besides those of its targets
NEAR, NEGATIVES, TEMPERATURE = 8, 2, 2.0  # documents that a target finds first; of these, how many in a batch
DEAD = 0.3  # slope of a logit below 0 whose target is above
KEPT = 32  # word pieces of a query
BLOCK = 512  # texts at a time
QUERIES = 500  # names per language


class Pair(NamedTuple):
    """A text, and its English translation, which is the text itself if it is English."""

    text: str
    english: str


class States:
    """Token states of multilingual-e5-small, without those of the prompt, and vectors of texts, as queries. Each text
    is encoded once and kept in a file."""

    def __init__(self, file: Path, texts: Sequence[str]):
        stored: dict[str, Any] = dict(np.load(file)) if file.exists() else {}
        known = set(stored["texts"].tolist()) if stored else set()
        if new := [text for text in dict.fromkeys(texts) if text not in known]:
            encoded = encode(new)
            stored = {key: np.concatenate([stored[key], encoded[key]]) if stored else encoded[key] for key in encoded}
            np.savez(file, **stored)
        self.rows = {text: row for row, text in enumerate(stored["texts"].tolist())}
        self.states, self.vectors = torch.from_numpy(stored["states"]), torch.from_numpy(stored["vectors"])
        self.lengths = torch.from_numpy(stored["lengths"])
        self.starts = self.lengths.cumsum(0) - self.lengths

    def standardize(self, english: Sequence[str], others: Sequence[Sequence[str]]) -> None:
        """Remove the directions in which the means of other languages differ from English, and scale by English."""

        def tokens(texts: Sequence[str]) -> torch.Tensor:
            rows = [self.rows[text] for text in texts]
            return torch.cat([self.states[self.starts[row] :][: self.lengths[row]] for row in rows]).float()

        def vectors(texts: Sequence[str]) -> torch.Tensor:
            return self.vectors[[self.rows[text] for text in texts]]

        own = tokens(english[:2000])
        self.mean, self.scale = own.mean(0), own.std(0)
        self.basis = torch.linalg.qr(torch.stack([tokens(texts).mean(0) - self.mean for texts in others]).T)[0]
        mean = vectors(english).mean(0)
        basis = torch.linalg.qr(torch.stack([vectors(texts).mean(0) - mean for texts in others]).T)[0]
        self.vectors = nn.functional.normalize(self.vectors - self.vectors @ basis @ basis.T, dim=1)
        self.scaled = (self.vectors - vectors(english).mean(0)) / vectors(english).std()

    def __call__(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Token states (texts, tokens, 384) and their mask, and states of texts (texts, 384)."""
        place = torch.arange(int(self.lengths[rows].max()))
        mask = place < self.lengths[rows, None]
        states = self.states[(self.starts[rows, None] + place).clamp(max=len(self.states) - 1)] - self.mean
        return (states - states @ self.basis @ self.basis.T) / self.scale, mask, self.scaled[rows]


@torch.inference_mode()
def encode(texts: Sequence[str]) -> dict[str, np.ndarray]:
    """The texts, their numbers of tokens, states (tokens of all texts, 384) in float16, and vectors (texts, 384)."""
    dense = EncoderModel(load_encoder("e5-small").replace(document_prompt="query: "), "cpu").load("documents")
    tokens = dense.token_ids(texts, LENGTH + 5)
    first = len(dense.token_ids(["x"], LENGTH).ids[0]) - 2  # tokens before the text
    states: list[np.ndarray] = [np.zeros((0, 384), np.float16)] * len(texts)
    vectors = np.zeros((len(texts), 384), np.float32)

    def run(ids: torch.Tensor, mask: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        hidden = dense.transformer(ids, mask).last_hidden_state.float()
        mean = nn.functional.normalize((hidden * mask[..., None]).sum(1), dim=1)
        return hidden.half().numpy(), mean.numpy()

    for positions, (hidden, mean) in dense.transformer.map_batches(run, tokens, 64):
        vectors[positions] = mean
        for position, of_text in zip(positions.tolist(), hidden, strict=True):
            states[position] = of_text[first : len(tokens.ids[position]) - 1]
    lengths = np.array([len(of_text) for of_text in states])
    return {"texts": np.array(texts), "lengths": lengths, "states": np.concatenate(states), "vectors": vectors}


class Decode(torch.autograd.Function):
    """The largest logit (texts, pieces) over states t (texts, states, width). Only it has a gradient, and few of the
    pieces have one, so that the backward pass costs next to nothing."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, mask: torch.Tensor, decoder: torch.Tensor, bias: torch.Tensor) -> Any:
        logits, winners = (t @ decoder.T).masked_fill_(~mask[..., None], -1e4).max(1)
        ctx.save_for_backward(winners, decoder)
        ctx.shape = t.shape
        return logits + bias

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        winners, decoder = ctx.saved_tensors
        texts, pieces = gradient.nonzero(as_tuple=True)
        places = texts * ctx.shape[1] + winners[texts, pieces]
        values = gradient[texts, pieces][:, None] * decoder[pieces]
        return values.new_zeros(ctx.shape).view(-1, ctx.shape[2]).index_add_(0, places, values).view(ctx.shape), *[
            None
        ] * 3


class Layer(nn.Module):
    """t: states of width 384 to those that a decoder of this width reads."""

    def __init__(self, width: int):
        super().__init__()
        self.token, self.text, self.whole = (nn.Linear(384, HIDDEN) for _ in range(3))
        self.out, self.whole_out, self.skip = nn.Linear(HIDDEN, width), nn.Linear(HIDDEN, width), nn.Linear(384, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(DROPOUT)

    def forward(
        self, states: torch.Tensor, mask: torch.Tensor, text: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """t of the states (texts, tokens, 384) and of the text's (texts, 384): (texts, tokens + 1, width), and mask."""
        hidden = nn.functional.gelu(self.token(states) + self.text(text)[:, None])
        whole = self.whole_out(nn.functional.gelu(self.whole(text)))
        t = torch.cat([self.out(self.drop(hidden)) + self.skip(states), whole[:, None]], 1)
        return self.norm(t), nn.functional.pad(mask, (0, 1), value=True)


class Teacher:
    """English texts, of which the first are the documents' titles, as queries and with IDF as documents: SPLADE's
    vectors (texts, pieces that occur in any), and the rows of the decoder for these pieces."""

    def __init__(self, texts: Sequence[str], titles: int, contents: Sequence[str]):
        encoder = EncoderModel(load_encoder("splade-tiny"), "cpu")
        model = encoder.load("documents")
        vectors = model.encode(texts, 64)
        used = np.unique(vectors.indices)
        self.rows = {text: row for row, text in reversed([*enumerate(texts)])}
        self.queries = csr_matrix(vectors[:, used])
        self.weighted = csr_matrix(self.queries @ diags(Idf.count(contents, encoder.tokenizer).weights()[used]))
        self.documents = self.weighted[:titles]
        decoder = load_masked_lm(encoder.checkpoint)[1]
        self.decoder, self.bias = decoder.weight.detach()[used], decoder.bias.detach()[used]
        self.near = np.zeros((len(texts), NEAR), int)
        for start in range(0, len(texts), BLOCK):
            scores = (self.queries[start : start + BLOCK] @ self.documents.T).toarray()
            self.near[start : start + BLOCK] = np.argpartition(-scores, NEAR, 1)[:, :NEAR]


def dense_rows(matrix: csr_matrix, columns: np.ndarray) -> torch.Tensor:
    """Rows of a sparse matrix, restricted to sorted columns, as float32 (rows, columns)."""
    found = torch.zeros(matrix.shape[0], len(columns))
    places = np.searchsorted(columns, matrix.indices)
    kept = columns[np.minimum(places, len(columns) - 1)] == matrix.indices
    found[np.repeat(np.arange(len(found)), np.diff(matrix.indptr))[kept], places[kept]] = torch.from_numpy(
        matrix.data[kept].astype(np.float32)
    )
    return found


def train(states: States, teacher: Teacher, pairs: Sequence[Pair], steps: int, seed: int) -> Layer:
    """A layer trained by the squared error of weights, and the divergence of scores from the teacher's."""
    torch.manual_seed(seed)
    draw = np.random.default_rng(seed)
    layer = Layer(teacher.decoder.shape[1])
    optimizer = torch.optim.AdamW(layer.parameters(), RATE, (0.9, 0.98))
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / WARM_UP, total_iters=WARM_UP)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps - WARM_UP))
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, decay], [WARM_UP])
    rows = torch.tensor([states.rows[pair.text] for pair in pairs])
    targets = np.array([teacher.rows[pair.english] for pair in pairs])
    for step in range(steps):
        if step % 8 == 0:  # batches of texts of similar length
            drawn = draw.integers(0, len(pairs), 8 * BATCH)
            batches = drawn[states.lengths[rows[drawn]].argsort()].reshape(8, BATCH)[draw.permutation(8)]
        own = targets[batches[step % 8]]
        near = teacher.near[own][np.arange(BATCH)[:, None], draw.integers(0, NEAR, (BATCH, NEGATIVES))]
        random = draw.integers(0, len(teacher.bias), PIECES)
        pieces = np.union1d(teacher.queries[own].indices, random)
        target = dense_rows(teacher.queries[own], pieces)
        documents = dense_rows(teacher.weighted[np.union1d(own, near)], pieces) / TEMPERATURE
        t, mask = layer(*states(rows[batches[step % 8]]))
        logits = Decode.apply(t, mask, teacher.decoder[pieces], teacher.bias[pieces])
        weights = torch.log1p(torch.relu(logits))
        error = torch.where((logits <= 0) & (target > 0), DEAD * logits, weights) - target
        scores, expected = ((each @ documents.T).log_softmax(1) for each in (weights, target))
        divergence = nn.functional.kl_div(scores, expected, log_target=True, reduction="batchmean")
        loss = error.square().sum() / BATCH + divergence
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 10)
        optimizer.step()
        schedule.step()
    return layer.eval()


@torch.inference_mode()
def connect(layer: Layer, states: States, teacher: Teacher, texts: Sequence[str]) -> csr_matrix:
    """The queries of texts (texts, pieces), of their KEPT largest weights."""
    found = []
    for start in range(0, len(texts), BATCH):
        t, mask = layer(*states(torch.tensor([states.rows[text] for text in texts[start : start + BATCH]])))
        weights = torch.log1p(torch.relu(Decode.apply(t, mask, teacher.decoder, teacher.bias)))
        least = weights.topk(KEPT, 1).values[:, -1:]
        found.append(csr_matrix(torch.where(weights >= least, weights, 0).numpy()))
    return csr_matrix(vstack(found))


def ndcg(scores: np.ndarray, relevant: Sequence[int]) -> list[float]:
    """nDCG@10 of queries with scores (queries, documents) and one relevant document each. Ties keep their order."""
    places = np.array(relevant)
    own = scores[np.arange(len(scores)), places][:, None]
    ranks = (scores > own).sum(1) + ((scores == own) & (np.arange(scores.shape[1]) < places[:, None])).sum(1)
    return np.where((ranks < 10) & (own[:, 0] > 0), 1 / np.log2(ranks + 2), 0).tolist()


def minmax(scores: np.ndarray) -> np.ndarray:
    low, high = scores.min(1, keepdims=True), scores.max(1, keepdims=True)
    return (scores - low) / np.maximum(high - low, 1e-9)


class Names:
    """Names of HPO's terms by language. Terms whose hash is divisible by three are held out, and all those that have a
    name in a language with few names."""

    def __init__(self, folder: Path):
        records = [*Hpo().records()]
        self.titles = {record.id: record.title for record in records}
        self.contents = [f"{record.title} {record.text}" for record in records]
        named: dict[str, dict[str, str]] = {}
        for file in sorted(folder.glob("*.tsv")):
            rows = (line.partition("\t") for line in file.read_text("utf-8").splitlines())
            named[file.stem] = {id: name.strip() for id, _, name in rows if id in self.titles}
        few = [language for language, names in named.items() if len(names) < 2 * QUERIES]
        held = {id for id in self.titles if _hash(id) % 3 == 0}.union(*(named[language] for language in few))
        self.measured = {
            language: {id: names[id] for id in sorted(names.keys() & held, key=_hash)[:QUERIES]}
            for language, names in named.items()
        }
        self.sources = {
            f"names {language}": [Pair(name, self.titles[id]) for id, name in names.items() if id not in held]
            for language, names in named.items()
            if language not in few
        }


def _hash(id: str) -> int:
    return int(sha256(id.encode()).hexdigest(), 16)


def main() -> None:
    parser = harness.parser(__doc__, collection=False, repeats=None)
    parser.add_argument("--names", type=Path, required=True, help="folder of LANGUAGE.tsv")
    parser.add_argument("--pairs", type=Path, help="TSV of language, text and English text")
    parser.add_argument("--states", type=Path, required=True, help="file for e5-small's token states")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()

    names = Names(args.names)
    titles = [*names.titles.values()]
    sources = {"titles": [Pair(title, title) for title in titles], **names.sources}
    if args.pairs:
        lines = args.pairs.read_text("utf-8").splitlines()
        sources["pairs"] = [Pair(*line.split("\t")[1:]) for line in lines]
    pairs = [*chain.from_iterable(sources.values())]
    asked = {language: [*named.values()] for language, named in names.measured.items()}
    states = States(args.states, [*(pair.text for pair in pairs), *chain.from_iterable(asked.values())])
    states.standardize(titles, [[pair.text for pair in pairs] for pairs in names.sources.values()])
    english = [pair.english for pair in pairs[len(titles) :]]
    teacher = Teacher([*titles, *dict.fromkeys(english)], len(titles), names.contents)

    relevant = {language: [[*names.titles].index(id) for id in named] for language, named in names.measured.items()}
    vectors = states.vectors[[states.rows[title] for title in titles]].numpy()
    best, dense, nearest = dict[str, float](), dict[str, np.ndarray](), dict[str, list[float]]()
    values: dict[tuple[int, str], list[dict[str, float]]] = {}
    for language, texts in asked.items():
        exact = teacher.queries[relevant[language]] @ teacher.documents.T
        best[language] = float(np.mean(ndcg(exact.toarray(), relevant[language])))
        dense[language] = states.vectors[[states.rows[text] for text in texts]].numpy() @ vectors.T
        borrowed = teacher.queries[dense[language].argmax(1)] @ teacher.documents.T
        nearest[language] = ndcg(borrowed.toarray(), relevant[language])
    rows: list[list[Any]] = [["English names", "", *(f"{mean:.4f}" for mean in best.values())]]
    rows.append(["e5-small, dense", "", *(_share(ndcg(dense[key], relevant[key]), best[key]) for key in best)])
    rows.append(["query of the nearest title", "", *(_share(nearest[key], best[key]) for key in best)])
    trainings = [["titles"], *(["titles", name] for name in sources if name != "titles"), [*sources]]
    for number, training in enumerate(trainings):
        examples = [*chain.from_iterable(sources[name] for name in training)]
        fused = dict[str, list[float]]()
        for seed in range(args.seeds):
            layer = train(states, teacher, examples, args.steps, seed)
            for language, texts in asked.items():
                scores = (connect(layer, states, teacher, texts) @ teacher.documents.T).toarray()
                found = dict(zip(texts, ndcg(scores, relevant[language]), strict=True))
                values.setdefault((number, language), []).append(found)
                both = sum(minmax(each) for each in (scores, dense[language]))
                fused.setdefault(language, []).extend(ndcg(both, relevant[language]))
        row = [" + ".join(training), f"{len(examples):,}"]
        for language, mean in best.items():
            p = over_seeds(values[0, language], values[number, language]).p
            row.append(f"{_share(harness.mean_by_seed(values[number, language]), mean)}, {p_text(p)}")
        rows += [row, ["the same + dense", "", *(_share(fused[language], best[language]) for language in best)]]
    header = ["trained on", "pairs", *(f"{language}: {len(texts)}" for language, texts in asked.items())]
    harness.show("nDCG@10 over titles (share of English; p of the difference to titles)", header, rows)


def _share(values: Any, whole: float) -> str:
    return f"{np.mean(values):.4f} ({np.mean(values) / whole:.2f})"


if __name__ == "__main__":
    main()
