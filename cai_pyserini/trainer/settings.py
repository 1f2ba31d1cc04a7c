"""What the steps of the trainer share: settings as dataclasses, from a YAML file and flags, and what goes beside a
checkpoint."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from cai_pyserini import artifact, cli
from cai_pyserini.cli import CaiError
from cai_pyserini.config import EncoderConfig, read_values

PACKAGES = ("accelerate", "bm25s", "datasets", "matplotlib", "Stemmer")  # of the extra `trainer`


@dataclass(frozen=True, kw_only=True)
class Training:
    """How to train: what every training step can be told."""

    batch_size: int = field(metadata={"help": "a device and step"})
    learning_rate: float = field(metadata={"help": "of AdamW, at the end of the warm-up; it falls linearly after it"})
    epochs: float = field(metadata={"help": "passes over the data"})
    max_steps: int = field(default=0, metadata={"help": "at most so many steps; 0: as many as the epochs take"})
    warmup_steps: int = field(default=1000, metadata={"help": "steps in which the learning rate rises from 0"})
    weight_decay: float = field(default=0.0, metadata={"help": "of AdamW"})
    accumulate: int = field(default=1, metadata={"help": "batches a step (gradient accumulation)"})
    seed: int = field(default=42, metadata={"help": "of the order, dropout and masks"})
    precision: Literal["auto", "float32", "bfloat16"] = field(
        default="auto", metadata={"help": "of the products; auto: bfloat16 where the hardware gains from it"}
    )
    device: Literal["auto", "cpu"] = field(default="auto", metadata={"help": "auto: all GPUs that there are"})
    log_steps: int = field(default=50, metadata={"help": "steps between logged losses"})
    save_steps: int = field(default=500, metadata={"help": "steps between points to resume from"})


def parse[S](kind: type[S], description: str, example: str) -> S:
    """Settings from the command line: a flag for each, and --config, a YAML file with those that differ from the
    defaults. Flags win."""
    parser = cli.parser(description, example)
    parser.add_argument("--config", type=Path, help="YAML file of settings; flags win over it")
    types = get_type_hints(kind)
    for setting in sorted(fields(kind), key=lambda setting: not _required(setting)):  # type: ignore[arg-type]
        _add(parser, setting, types[setting.name])
    given = vars(parser.parse_args())
    if lacking := [name for name in PACKAGES if find_spec(name) is None]:
        raise CaiError(f"{', '.join(lacking)} not installed: pip install 'cai-pyserini[trainer]'")
    path = given.pop("config")
    values = read_values(kind, path) if path else {}
    values |= {key: value for key, value in given.items() if value is not None}
    required = [setting.name for setting in fields(kind) if _required(setting)]  # type: ignore[arg-type]
    if missing := [f"--{name.replace('_', '-')}" for name in required if name not in values]:
        parser.error(f"{', '.join(missing)} must be given, as a flag or in the file of --config")
    return kind(**values)


def load[S](kind: type[S], path: str | None, fixed: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> S:
    """Settings of a step that another one runs: the defaults, `usual`, those of a YAML file, and what is fixed."""
    values = read_values(kind, Path(path)) if path else {}
    if clash := sorted(values.keys() & fixed.keys()):
        raise CaiError(f"{path}: {', '.join(clash)} cannot be set here")
    return kind(**{**(usual or {}), **values, **fixed})


def _required(setting: Field[Any]) -> bool:
    return setting.default is MISSING and setting.default_factory is MISSING


def _add(parser: argparse.ArgumentParser, setting: Field[Any], wanted: Any) -> None:
    text = setting.metadata["help"]
    if setting.default not in (MISSING, None, 0):
        text += f" (default: {setting.default})"
    kind = get_args(wanted)[0] if get_origin(wanted) is UnionType else wanted  # X | None
    how = {"choices": get_args(kind)} if get_origin(kind) is Literal else {"type": kind}
    how = {"nargs": "+"} if get_origin(kind) is list else how
    parser.add_argument(f"--{setting.name.replace('_', '-')}", help=text, **how)


def recipe(given: Any, *without: str) -> dict[str, Any]:
    """The settings that a result depends on."""
    free = {*without, "output", "device", "log_steps", "save_steps"}
    return {key: value for key, value in asdict(given).items() if key not in free}


def write_encoder(base: EncoderConfig, folder: Path, idf: Path | None = None) -> None:
    """An encoder.yaml in the folder of a checkpoint: that of its base, with an IDF of its own or none."""
    from cai_pyserini.impact import encoder_yaml

    config = replace(base, name="", checkpoint=str(folder), revision=None, range=None, source=None)
    config = replace(config, idf=str(idf) if idf else None)
    artifact.write_text(folder / "encoder.yaml", encoder_yaml(config, folder))


def say(text: str) -> None:
    """Print, in one of several processes."""
    if os.environ.get("RANK", "0") == "0":
        print(text)
