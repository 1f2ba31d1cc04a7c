"""Settings and refusals of sentence-transformers folders; test_kinds.py compares their vectors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sentence_transformers.base.modules import Dense, Normalize

from cai_pyserini.cli.run import main as beir
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.folder import token_weights
from cai_pyserini.models.idf import compute
from cai_pyserini.models.tokenizer import Tokenizer
from tests.conftest import with_other_terms
from tests.models.kinds import LENGTH, PROMPTS, TEXTS, WIDTH, change, dense, pooling, routed, sparse, static
from tests.models.kinds import tiny as small

BUILD = {
    "sparse": sparse("max", "log1p_relu", prompts=PROMPTS),
    "routed": routed(lambda _: [static()], prompts=PROMPTS),
    "dense": dense(pooling("mean"), lambda: Dense(WIDTH, 64), Normalize, prompts=PROMPTS),
    "cls": dense(pooling("cls"), Normalize),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder by its name in BUILD, built once; not to be changed."""
    root = tmp_path_factory.mktemp("folders")

    def folder(name: str) -> Path:
        if not (root / name).exists():
            BUILD[name](root / name)
        return root / name

    return folder


@pytest.fixture
def copied(original: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of an original folder, to change."""
    return lambda name: Path(shutil.copytree(original(name), tmp_path / name))


def encoder(folder: Path, precision: str = "float32", **settings: object) -> EncoderModel:
    return EncoderModel(load_encoder(str(folder)).replace(**settings), "cpu", precision)  # type: ignore[arg-type]


def modules(*types: str, path: str | None = None) -> Callable[[Path], None]:
    """Change the types of modules, and the path of the last."""

    def change_types(folder: Path) -> None:
        found = json.loads((folder / "modules.json").read_text())
        for module, type in zip(found, types, strict=False):
            module["type"] = type or module["type"]
        found[-1]["path"] = found[-1]["path"] if path is None else path
        (folder / "modules.json").write_text(json.dumps(found))

    return change_types


def about(**settings: object) -> Callable[[Path], None]:
    return lambda folder: change(folder / "config_sentence_transformers.json", **settings)


def config(place: str, **settings: object) -> Callable[[Path], None]:
    return lambda folder: change(folder / place / "config.json", **settings)


def as_pickle(folder: Path) -> None:
    shutil.move(folder / "2_Dense" / "model.safetensors", folder / "2_Dense" / "pytorch_model.bin")


def keeping_case(folder: Path) -> None:
    change(folder / "sentence_bert_config.json", do_lower_case=True)
    settings = json.loads((folder / "tokenizer.json").read_text())
    settings["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(settings))


def route(role: str, *names: str) -> Callable[[Path], None]:
    def change_route(folder: Path) -> None:
        structure = json.loads((folder / "router_config.json").read_text())["structure"]
        change(folder / "router_config.json", structure=structure | {role: names})

    return change_route


def broken(place: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / place).write_text(text) and None


LIBRARY = "sentence_transformers.models"
REFUSED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "distance": ("dense", about(similarity_fn_name="euclidean"), "by their euclidean distance; indexes here score by"),
    "sparse cosine": ("sparse", about(similarity_fn_name="cosine"), "compares sparse vectors by cosine; indexes of"),
    "reranker": ("dense", about(model_type="CrossEncoder"), "is a reranker: give it as the setting cross_encoder"),
    "pictures": ("dense", modules(f"{LIBRARY}.CLIPModel"), "of the modules CLIPModel, Pooling, Dense, Normalize is"),
    "words": ("dense", modules(f"{LIBRARY}.WordEmbeddings"), "of the modules WordEmbeddings, Pooling, .* is not supp"),
    "layers": ("dense", modules("", f"{LIBRARY}.WeightedLayerPooling"), "Transformer, WeightedLayerPooling, Dense, "),
    "own code": ("dense", modules("custom_st.Transformer"), r"module custom_st\.Transformer is custom code, which is"),
    "outside": ("dense", modules(path="../elsewhere"), r"the module \.\./elsewhere is outside the folder"),
    "function": ("dense", config("2_Dense", activation_function="os.system"), "function os.system is not one of"),
    "no class": (
        "dense",
        config("2_Dense", activation_function="torch.nn.functional.relu"),
        r"2_Dense: the module Dense cannot be read \(Activation function .* must be a torch.nn.Module",
    ),
    "pickle": ("dense", as_pickle, r"2_Dense has no \*\.safetensors; other formats can run code"),
    "mode": ("dense", config("1_Pooling", pooling_mode="median"), "the module Pooling cannot be read .*median"),
    "strategy": ("sparse", config("1_SpladePooling", pooling_strategy="mean"), "pooling by mean of log1p_relu is not"),
    "activation": ("sparse", config("1_SpladePooling", activation_function="gelu"), "by max of gelu is not supported"),
    "chat": ("dense", broken("sentence_bert_config.json", '{"modality_config": {"message": {}}}'), "as chat messages"),
    "case": ("dense", keeping_case, "do_lower_case .* is not supported: its tokenizer keeps case"),
    "no route": ("routed", route("query"), "its Router has no route for queries"),
    "static documents": ("routed", route("document", "query_0_SparseStaticEmbedding"), "documents are bags of words"),
    "module without a type": ("dense", broken("modules.json", '[{"path": ""}]'), r"are not as .*'type'.*; save or"),
    "no JSON": ("dense", broken("modules.json", "[{"), r"modules\.json: not JSON .*; save or download the model again"),
    "prompts": ("dense", about(prompts="query: "), r"its JSON files are not as sentence-transformers writes them"),
    "no pooling": ("dense", broken("1_Pooling/config.json", "{}"), "1_Pooling: the module Pooling cannot be read"),
    "no such route": ("routed", route("query", "elsewhere"), "its Router has no route for queries"),
    "no weights": (
        "routed",
        config("query_0_SparseStaticEmbedding", path="../idf.json"),
        r"the token weights are in \.\./idf\.json, which is not in this folder: copy it there",
    ),
}


@pytest.mark.parametrize("name, spoil, message", REFUSED.values(), ids=REFUSED)
def test_what_is_not_supported_is_refused_in_a_sentence(
    name: str, spoil: Callable[[Path], None], message: str, copied: Callable[[str], Path]
) -> None:
    folder = copied(name)
    spoil(folder)
    with pytest.raises(CaiError, match=message):
        made = encoder(folder)
        made.load("documents")
        assert made.token_weights is not None


def test_a_model_of_the_other_kind_is_refused(original: Callable[[str], Path], tiny: Path, tmp_path: Path) -> None:
    for flag, name, message in (
        ("--dense", "sparse", "is a splade model, not a dense one"),
        ("--encoder", "dense", "is dense: give it as the setting dense"),
    ):
        with pytest.raises(CaiError, match=message):
            beir([str(tiny), flag, str(original(name)), "--output", str(tmp_path / "run")])


def test_a_reranker_is_no_encoder(cross_encoder: Path) -> None:
    with pytest.raises(CaiError, match="is a reranker: give it as the setting cross_encoder"):
        encoder(cross_encoder, kind="dense")


def test_queries_need_the_vocabulary_of_documents(
    checkpoint: Path, original: Callable[[str], Path], tmp_path: Path
) -> None:
    other = with_other_terms(checkpoint, tmp_path / "other")
    with pytest.raises(CaiError, match=r"has another vocabulary than .*: no query would match"):
        encoder(original("sparse"), query_checkpoint=str(other)).load("queries")


def test_queries_need_the_pooling_of_documents(checkpoint: Path, original: Callable[[str], Path]) -> None:
    with pytest.raises(CaiError, match="log1p_relu for queries"):
        encoder(checkpoint, query_checkpoint=str(original("sparse")))


def test_dimensions_beyond_the_width_are_refused(original: Callable[[str], Path]) -> None:
    assert encoder(original("dense"), dimensions=64).load("documents").width == 64
    with pytest.raises(CaiError, match="dense has 64 dimensions, fewer than `dimensions`, 65: lower it"):
        encoder(original("dense"), dimensions=65).load("documents")


def test_only_means_are_weighted_with_idf(original: Callable[[str], Path], tiny: Path, tmp_path: Path) -> None:
    from cai_pyserini.collections.beir_folder import BeirFolder

    idf = str(compute(BeirFolder(tiny, "tiny"), load_encoder(small()), tmp_path / "idf"))
    with pytest.raises(CaiError, match="does not pool by the mean of its tokens, which is where IDF weights apply"):
        encoder(original("cls"), idf=idf).require_loadable()
    weighted, plain = (encoder(original("dense"), **each) for each in ({"idf": idf}, {}))
    weighted.require_loadable()
    assert abs(np.subtract(*(each.load("documents").encode(TEXTS, LENGTH) for each in (weighted, plain)))).max() > 1e-3


@pytest.mark.parametrize("name", ["sparse", "dense"])
def test_bfloat16_is_close(name: str, original: Callable[[str], Path]) -> None:
    exact, fast = (
        encoder(original(name), each).load("documents").encode(TEXTS, LENGTH) for each in ("float32", "bfloat16")
    )
    exact, fast = (each.toarray() if isinstance(each, csr_matrix) else each for each in (exact, fast))
    assert 0 < abs(exact - fast).max() < 0.03 * abs(exact).max()


def test_lengths_are_those_of_each_side(original: Callable[[str], Path], copied: Callable[[str], Path]) -> None:
    assert encoder(original("routed")).config.max_query_length == LENGTH + 2  # room for special tokens
    folder = copied("dense")
    (folder / "sentence_bert_config.json").unlink()
    change(folder / "tokenizer_config.json", model_max_length=10**30)
    assert encoder(folder).config.max_document_length == 512  # the positions of the model
    change(folder / "config.json", max_position_embeddings=64)
    assert encoder(folder).config.max_document_length == 64


def test_unknown_tokens_have_no_weight(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "idf.json").write_text(json.dumps({"fever": 2.5, "[UNK]": 0.5, "no token of this vocabulary": 9.0}))
    weights = token_weights(tmp_path / "idf.json", tokenizer := Tokenizer(checkpoint))
    assert weights[tokenizer.ids["[UNK]"]] == 0.5 and weights.sum() == 3.0  # the library takes 9.0 for [UNK]
    (tmp_path / "idf.json").write_text('{"fever": "much"}')
    with pytest.raises(CaiError, match=r"idf\.json: expected {token: weight} \(could not convert string to float"):
        token_weights(tmp_path / "idf.json", tokenizer)


def test_an_identity_has_the_files_of_modules(original: Callable[[str], Path], copied: Callable[[str], Path]) -> None:
    folder, before = copied("dense"), encoder(original("dense"))
    assert encoder(folder).digest == before.digest
    change(folder / "1_Pooling" / "config.json", pooling_mode="max")
    assert encoder(folder).digest != before.digest


def test_a_prompt_changes_the_identity_of_its_side(
    original: Callable[[str], Path], copied: Callable[[str], Path]
) -> None:
    folder = copied("routed")
    about(prompts=PROMPTS | {"query": "another: "})(folder)
    one, other = encoder(original("routed")), encoder(folder)
    assert one.identity("documents") == other.identity("documents")
    assert one.identity("queries") != other.identity("queries")
