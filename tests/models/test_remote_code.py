"""Checkpoints with code of their own: not run unless it is trusted, and then its vectors, although transformers loads
such models without the buffers that they compute."""

import importlib.util
import json
import logging
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import build
from cai_pyserini.models.dense import Dense
from cai_pyserini.models.encoder import Encoder
from cai_pyserini.models.idf import Idf, compute
from cai_pyserini.models.splade import Splade
from cai_pyserini.models.tokenizer import Tokenizer
from cai_pyserini.plugin.encoder import bundle
from tests.models.test_architectures import SENTENCES, make_tokenizer

CODE = """
from pathlib import Path

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

Path("MARKER").touch()


class OwnConfig(PretrainedConfig):
    model_type = "own"

    def __init__(self, vocab_size=9, hidden_size=32, **more):
        super().__init__(**more)
        self.vocab_size, self.hidden_size = vocab_size, hidden_size


class TransformerBlock(nn.Module):  # DistilBERT has a class of this name, with other parts
    def __init__(self, width):
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, hidden, mask):
        mean = (hidden * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        return torch.tanh(self.mix(hidden + mean))


class OwnForMaskedLM(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(40, config.hidden_size)
        self.register_buffer("scales", torch.linspace(1, 2, config.hidden_size), persistent=False)
        self.block = TransformerBlock(config.hidden_size)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self):
        return self.embedding

    def get_output_embeddings(self):
        return self.decoder

    def forward(self, input_ids, attention_mask=None, **more):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        places = self.position_embeddings(torch.arange(input_ids.shape[1]))
        hidden = self.block((self.embedding(input_ids) + places) * self.scales, mask[..., None])
        return MaskedLMOutput(logits=self.decoder(hidden))
"""

TOKENIZER = """
from pathlib import Path

from transformers import PreTrainedTokenizerFast

Path("MARKER").touch()


class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with code that writes the file `ran` next to it when it runs."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "modeling_own.py").write_text(CODE.replace("MARKER", str(tmp_path / "ran")))
    torch.manual_seed(0)
    own = code(folder)
    model = own.OwnForMaskedLM(own.OwnConfig(**make_tokenizer(folder, "Bert")))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    write_auto_map(folder, "modeling_own")
    (tmp_path / "ran").unlink()
    return folder


def code(folder: Path) -> ModuleType:
    """Import the code of a checkpoint."""
    spec = importlib.util.spec_from_file_location("own_of_test", folder / "modeling_own.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_auto_map(folder: Path, module: str) -> None:
    path = folder / "config.json"
    names = {"AutoConfig": f"{module}.OwnConfig", "AutoModelForMaskedLM": f"{module}.OwnForMaskedLM"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": names, "model_type": "own"}))


def config(folder: Path, **settings: object) -> EncoderConfig:
    return EncoderConfig(name="own", checkpoint=str(folder)).replace(**settings)


def test_code_that_is_not_trusted_runs_nowhere(folder: Path) -> None:
    made = Encoder(config(folder), "cpu", "float32")
    made.require_loadable("documents", "queries")
    assert made.digest and made.tokenizer.encode(["fever"], 8)
    for load in (lambda: made.load("documents"), lambda: Splade(folder, "cpu"), lambda: Dense(folder, "cpu")):
        with pytest.raises(CaiError, match=r"own has code of its own .*which was not run: read it, and set `trust_rem"):
            load()
    assert not (folder.parent / "ran").exists()


def test_a_tokenizer_of_its_own_runs_only_if_it_is_trusted(folder: Path, tiny: Path, tmp_path: Path) -> None:
    path = folder / "tokenizer_config.json"
    auto_map = {"AutoTokenizer": [None, "tokenization_own.OwnTokenizer"]}
    path.write_text(json.dumps({"tokenizer_class": "OwnTokenizer", "auto_map": auto_map}))
    ran = tmp_path / "ran"
    (folder / "tokenization_own.py").write_text(TOKENIZER.replace("MARKER", str(ran)))
    documents = BeirFolder(tiny, "tiny")
    with pytest.raises(CaiError, match=r"has code of its own .*, which was not run: read it, and set `trust_remote"):
        compute(documents, config(folder), tmp_path / "idf")
    assert not ran.exists()
    trusted = config(folder, trust_remote_code=True)
    assert Idf.load(compute(documents, trusted, tmp_path / "idf")).vocabulary == Encoder(trusted).tokenizer.vocabulary
    assert ran.exists()


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_code_that_is_trusted_gives_its_vectors(
    folder: Path, precision: str, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    if precision == "int8":
        request.getfixturevalue("vnni")
    own = code(folder)
    model = own.OwnForMaskedLM(own.OwnConfig.from_pretrained(folder)).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    with torch.inference_mode():
        rows = [model(torch.tensor([ids])).logits[0] for ids in Tokenizer(folder).encode(SENTENCES, 24)]
    expected = np.stack([torch.log1p(torch.relu(row)).amax(0).numpy() for row in rows])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            made = Encoder(config(folder, trust_remote_code=True, max_document_length=40), "cpu", precision)
            found = made.load("documents").encode(SENTENCES, 24).toarray()
    np.testing.assert_allclose(found, expected, atol=1e-4 if precision == "float32" else 0.1)
    assert [each for each in caplog.messages if "code" in each] == [
        f"the code of {folder}, revision none, is trusted and will run here"
    ]
    with pytest.raises(CaiError, match="reads at most 40 tokens, not 41"):
        made.load("queries").encode(SENTENCES, 41)


def test_code_is_part_of_what_vectors_depend_on_and_of_what_is_shipped(folder: Path, tmp_path: Path) -> None:
    trusted = config(folder, trust_remote_code=True)
    without, before = Encoder(config(folder)).digest, Encoder(trusted).digest
    bundle(trusted, tmp_path / "bundle", "checkpoint", checkpoint=True)
    assert Encoder(trusted.replace(checkpoint=str(tmp_path / "bundle" / "checkpoint"))).digest == before
    assert "trust" not in (tmp_path / "bundle" / "encoder.yaml").read_text()  # each user has to set it
    (folder / "modeling_own.py").write_text("")
    assert Encoder(config(folder)).digest == without != before != Encoder(trusted).digest != without


def test_code_in_another_repository_is_refused(folder: Path) -> None:
    write_auto_map(folder, "someone/else--modeling_own")
    with pytest.raises(CaiError, match=r"config\.json: its code is in another repository, someone/else, .*: copy the"):
        Encoder(config(folder, trust_remote_code=True), "cpu").load("documents")


def test_code_that_fails_is_named_as_such(folder: Path) -> None:
    (folder / "modeling_own.py").write_text("import a_package_that_is_not_here\n" + CODE)
    with pytest.raises(CaiError, match=r"own has no masked-language-model head: .*a_package_that_is_not_here"):
        Encoder(config(folder, trust_remote_code=True), "cpu").load("documents")


@pytest.mark.parametrize("more", [{}, {"revision": "0" * 40, "query_checkpoint": "org/queries"}])
def test_the_revision_of_code_from_a_hub_is_required(more: dict[str, str]) -> None:
    values = {"name": "own", "checkpoint": "org/own", "trust_remote_code": True} | more
    with pytest.raises(CaiError, match=r"name the revision of org/(own|queries) whose code you have read"):
        build(EncoderConfig, values, "own.yaml")
