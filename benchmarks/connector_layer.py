"""Queries in any language to the SPLADE index of an English collection, without words or models of that language.

A connector (after MILCO, Nguyen et al. 2025) is a layer t between the token states h_i of multilingual-e5-small and the
frozen decoder E, c of splade-tiny. It also reads x, the vector of the text, and F GELU(G x) is a state of its own:

    w_v = max over i of log(1 + relu(<e_v, t(h_i)> + c_v)),    t(h) = LayerNorm(C GELU(A h + B x) + D h)

It learns splade-tiny's vectors of the English titles of the collection from these titles, then also from names of other
terms in other languages. Without training, a query can borrow the vector of the title that is nearest for e5-small.

Documents are titles with IDF, so that only queries are measured: names of HPO's terms (--names: LANGUAGE.tsv, lines of
id and name) that were never trained on, nor any other name of these terms but their English titles.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from connector import Names, ndcg
from scipy.sparse import csr_matrix, diags, vstack
from torch import nn
from torch.nn.functional import gelu, kl_div, normalize, pad

from cai_pyserini.core.config import load_encoder
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import Idf
from cai_pyserini.models.splade import load_masked_lm
from cai_pyserini.runs.seeds import over_seeds
from cai_pyserini.runs.significance import p_text

HIDDEN, RATE, WARM_UP, BATCH = 512, 2e-3, 200, 64
PIECES = 1500  # random word pieces of a batch, besides those of its targets
NEAR, NEGATIVES, TEMPERATURE = 8, 2, 2.0  # documents that a target finds first; how many of them are in a batch
KEPT = 32  # word pieces of a query


class States:
    """Standardized states of the tokens of texts, without the prompt's, and vectors of the texts."""

    def __init__(self, texts: Sequence[str], languages: Sequence[slice]):
        """Directions in which the means of languages, slices of texts, differ from the first's are removed."""
        model = EncoderModel(load_encoder("e5-small").replace(document_prompt="query: "), "cpu").load("documents")
        first = len(model.token_ids(["x"], 16).ids[0]) - 2  # tokens before the text
        tokens = model.token_ids(texts, 24 + first)
        states, means = [np.zeros((0, 384), np.float16)] * len(texts), np.zeros((len(texts), 384), np.float32)

        @torch.inference_mode()
        def run(ids: torch.Tensor, mask: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
            hidden = model.transformer(ids, mask).last_hidden_state.float()
            return hidden.half().numpy(), normalize((hidden * mask[..., None]).sum(1), dim=1).numpy()

        for positions, (hidden, means[positions]) in model.transformer.map_batches(run, tokens):
            for position, of_text in zip(positions.tolist(), hidden, strict=True):
                states[position] = of_text[first : len(tokens.ids[position]) - 1]
        self.lengths = torch.tensor([len(of_text) for of_text in states])
        self.starts = self.lengths.cumsum(0) - self.lengths
        self.states = torch.from_numpy(np.concatenate(states))
        whole = [np.concatenate(states[part]).astype(np.float32) for part in languages]
        self.mean, self.scale, self.basis = self._fit(whole)
        _, _, basis = self._fit([means[part] for part in languages])
        self.vectors = normalize(torch.from_numpy(means) @ (torch.eye(384) - basis @ basis.T), dim=1)
        of_first = self.vectors[languages[0]]
        self.scaled = (self.vectors - of_first.mean(0)) / of_first.std()

    @staticmethod
    def _fit(parts: Sequence[np.ndarray]) -> tuple[torch.Tensor, ...]:
        means = torch.stack([torch.from_numpy(part.mean(0)) for part in parts])
        return means[0], torch.from_numpy(parts[0].std(0)), torch.linalg.qr((means[1:] - means[0]).T)[0]

    def __call__(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Token states (texts, tokens, 384), their mask, and vectors (texts, 384)."""
        place = torch.arange(int(self.lengths[rows].max()))
        states = self.states[(self.starts[rows, None] + place).clamp(max=len(self.states) - 1)] - self.mean
        states = (states - states @ self.basis @ self.basis.T) / self.scale
        return states, place < self.lengths[rows, None], self.scaled[rows]


class Decode(torch.autograd.Function):
    """The largest logit (texts, pieces) over states (texts, states, width). Only the largest has a gradient, and few
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
        values = gradient[texts, pieces][:, None] * decoder[pieces]
        found = gradient.new_zeros(ctx.shape[0] * ctx.shape[1], ctx.shape[2])
        return found.index_add_(0, texts * ctx.shape[1] + winners[texts, pieces], values).view(ctx.shape), *[None] * 3


class Layer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.token, self.text, self.whole = (nn.Linear(384, HIDDEN) for _ in range(3))
        self.out, self.whole_out, self.skip = nn.Linear(HIDDEN, width), nn.Linear(HIDDEN, width), nn.Linear(384, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)

    def forward(
        self, states: torch.Tensor, mask: torch.Tensor, text: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The states that the decoder reads (texts, tokens + 1, width), and their mask."""
        tokens = self.out(self.drop(gelu(self.token(states) + self.text(text)[:, None]))) + self.skip(states)
        t = torch.cat([tokens, self.whole_out(gelu(self.whole(text)))[:, None]], 1)
        return self.norm(t), pad(mask, (0, 1), value=True)


class Connector:
    """Targets, the decoder's rows for their word pieces, and documents: splade-tiny's vectors of titles."""

    def __init__(self, states: States, titles: Sequence[str], contents: Sequence[str]):
        encoder = EncoderModel(load_encoder("splade-tiny"), "cpu")
        vectors = encoder.load("documents").encode(titles, 64)
        used, linear = np.unique(vectors.indices), load_masked_lm(encoder.checkpoint)[1]
        self.states, self.queries = states, csr_matrix(vectors[:, used])
        self.documents = csr_matrix(self.queries @ diags(Idf.count(contents, encoder.tokenizer).weights()[used]))
        self.decoder, self.bias = linear.weight.detach()[used], linear.bias.detach()[used]
        self.vectors = csr_matrix(states.vectors[: len(titles)].numpy())
        parts = (self.queries[start : start + 512] @ self.documents.T for start in range(0, len(titles), 512))
        self.near = np.vstack([np.argpartition(-part.toarray(), NEAR, 1)[:, :NEAR] for part in parts])

    def train(self, rows: torch.Tensor, targets: np.ndarray, steps: int, seed: int) -> Layer:
        """By squared errors of weights, and the divergence of scores. `rows` are texts, `targets` their titles."""
        torch.manual_seed(seed)
        draw = np.random.default_rng(seed)
        layer = Layer(self.decoder.shape[1])
        optimizer = torch.optim.AdamW(layer.parameters(), RATE, (0.9, 0.98))
        rate = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, RATE, steps, pct_start=WARM_UP / steps, cycle_momentum=False
        )
        for step in range(steps):
            if step % 8 == 0:  # batches of texts of similar length
                drawn = draw.integers(0, len(rows), 8 * BATCH)
                batches = drawn[self.states.lengths[rows[drawn]].argsort()].reshape(8, BATCH)[draw.permutation(8)]
            own = targets[batches[step % 8]]
            near = self.near[own][np.arange(BATCH)[:, None], draw.integers(0, NEAR, (BATCH, NEGATIVES))]
            pieces = np.union1d(self.queries[own].indices, draw.integers(0, len(self.bias), PIECES))
            target, documents = (
                torch.from_numpy(part[:, pieces].toarray()).float()
                for part in (self.queries[own], self.documents[np.union1d(own, near)])
            )
            logits = Decode.apply(
                *layer(*self.states(rows[batches[step % 8]])), self.decoder[pieces], self.bias[pieces]
            )
            weights = torch.log1p(torch.relu(logits))
            errors = torch.where((logits <= 0) & (target > 0), 0.3 * logits, weights) - target
            scores, expected = ((each @ documents.T / TEMPERATURE).log_softmax(1) for each in (weights, target))
            loss = errors.square().sum() / BATCH + kl_div(scores, expected, log_target=True, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(layer.parameters(), 10)
            optimizer.step()
            rate.step()
        return layer.eval()

    @torch.inference_mode()
    def queries_of(self, layer: Layer, rows: torch.Tensor) -> csr_matrix:
        """The KEPT largest weights of each text (texts, pieces)."""
        found = []
        for part in rows.split(BATCH):
            weights = torch.log1p(torch.relu(Decode.apply(*layer(*self.states(part)), self.decoder, self.bias)))
            found.append(csr_matrix(torch.where(weights >= weights.topk(KEPT, 1).values[:, -1:], weights, 0).numpy()))
        return vstack(found, format="csr")


def main() -> None:
    parser = harness.parser(__doc__, collection=False, repeats=None)
    parser.add_argument("--names", type=Path, required=True, help="folder of LANGUAGE.tsv")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()

    names = Names(args.names)
    texts, places, parts = [*names.titles.values()], [*range(len(names.titles))], {}
    by_id = {id: place for place, id in enumerate(names.titles)}
    for kind, named in (("others", names.others), ("measured", names.measured)):
        for language, of_language in named.items():
            parts[kind, language] = slice(len(texts), len(texts) + len(of_language))
            texts += of_language.values()
            places += (by_id[id] for id in of_language)
    targets, titles = np.array(places), slice(0, len(by_id))
    trained = [parts["others", language] for language in names.others]
    connector = Connector(States(texts, [titles, *trained]), texts[titles], names.contents)

    columns: dict[str, list[list[np.ndarray]]] = {}
    trainings = {"titles": [titles], **{f"titles, names {key}": [titles, parts["others", key]] for key in names.others}}
    trainings["titles, all names"] = [titles, *trained]
    asked = {language: torch.arange(len(texts))[parts["measured", language]] for language in names.measured}
    documents, queries = connector.documents, connector.queries
    for language, rows in asked.items():
        own = targets[rows]
        dense = csr_matrix(connector.states.vectors[rows].numpy())
        nearest = (dense @ connector.vectors.T).toarray().argmax(1)
        columns[language] = [
            [ndcg(queries[own], documents, own)],
            [ndcg(dense, connector.vectors, own)],
            [ndcg(queries[nearest], documents, own)],
        ]
    for of_training in trainings.values():
        rows = torch.cat([torch.arange(len(texts))[part] for part in of_training])
        layers = [connector.train(rows, targets[rows], args.steps, seed) for seed in range(args.seeds)]
        for language, each in asked.items():
            found = [ndcg(connector.queries_of(layer, each), documents, targets[each]) for layer in layers]
            columns[language].append(found)
    table = []
    for number, name in enumerate(("English names", "e5-small, dense", "vector of the nearest title", *trainings)):
        table.append([name])
        for column in columns.values():
            base, values = ([dict(enumerate(seed.tolist())) for seed in column[place]] for place in (3, number))
            mean = np.mean(column[number])
            table[-1].append(f"{mean:.4f} ({mean / np.mean(column[0]):.2f}, {p_text(over_seeds(base, values).p)})")
    header = ["", *(f"{language}: {len(rows)}" for language, rows in asked.items())]
    harness.show("nDCG@10 (share of English; p of the difference to the layer trained on titles)", header, table)


if __name__ == "__main__":
    main()
