"""Running transformers.Trainer so that its result is an artifact that an interrupted training continues.

The checkpoints of a training are in `output`/training while it runs. What is resumed ends in the same weights, bit by
bit, as what was never interrupted.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from datasets import Dataset, disable_progress_bars
from datasets.arrow_writer import SchemaInferenceError
from datasets.exceptions import DatasetGenerationError
from transformers import PrinterCallback, TrainingArguments
from transformers.utils import logging

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.figures import plot_lines
from cai_pyserini.models.splade import load_masked_lm
from cai_pyserini.models.transformer import resolve_device, resolve_precision
from cai_pyserini.trainer.callbacks import Progress, TimedCheckpoints
from cai_pyserini.trainer.settings import TrainingSettings, write_encoder

WORK = "training"  # the folder for checkpoints, in the output
CHECKPOINT_FILES = ("optimizer.pt", "scheduler.pt")  # beside trainer_state.json, which is written last


class Trainer(transformers.Trainer):
    """transformers.Trainer without its own lines and bars; `last_loss` is that of the last batch."""

    def __init__(self, *arguments: Any, **more: Any):
        super().__init__(*arguments, **more)
        self.remove_callback(PrinterCallback)
        self.last_loss: Any = float("nan")

    def training_step(self, *arguments: Any, **more: Any) -> Any:
        self.last_loss = super().training_step(*arguments, **more)
        return self.last_loss


def load_model(checkpoint: Path, dropout: float | None = None) -> Any:
    """A masked language model to train, with this dropout probability, or else the checkpoint's."""
    model, decoder = load_masked_lm(checkpoint)
    del decoder.forward
    return rebuilt(model, dropout)


def rebuilt(loaded: Any, dropout: float | None = None) -> Any:
    """Rebuild a model so that checkpoints use current parameter names, and set its dropout probability if one is given.

    What from_pretrained has loaded is saved under the names of its own checkpoint, which can be old ones ("gamma"), and
    resuming a training would silently leave those out.
    """
    model = type(loaded)(loaded.config)
    if hasattr(model, "pooler"):
        model.pooler = loaded.pooler  # perhaps None
    model.load_state_dict(loaded.state_dict())
    if dropout is not None:
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = dropout
    return model


def make(output: Path, recipe: artifact.Recipe, write: Callable[[Path], artifact.Stats | None]) -> Path:
    """Make the resumable artifact of a training. Of several processes, the first alone touches the folder itself;
    `write` runs in all."""
    if not artifact.is_up_to_date(output, recipe):
        if int(os.environ.get("RANK", "0")):
            write(output)
        else:
            artifact.make(output, recipe, write, resumable=True)
            shutil.rmtree(output / WORK, ignore_errors=True)  # after the manifest, without which it is needed
        if dist.is_initialized():
            dist.barrier()
    return output


def arguments(settings: TrainingSettings, work: Path) -> Any:
    """TrainingArguments with the working folder `work`."""
    logging.set_verbosity_error()
    device = resolve_device(settings.device)
    return TrainingArguments(
        output_dir=str(work),
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps or -1,
        warmup_steps=settings.warmup_steps,
        weight_decay=settings.weight_decay,
        seed=settings.seed,
        bf16=resolve_precision(settings.precision, device) == "bfloat16",
        use_cpu=device.type == "cpu",
        logging_steps=settings.log_steps,
        save_steps=settings.save_steps,
        save_total_limit=2,
        report_to="none",
        remove_unused_columns=False,
        ddp_broadcast_buffers=False,
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        optim="adamw_torch_fused",
    )


def start(arguments: Any, recipe: artifact.Recipe) -> None:
    """Make the working folder, unless an interrupted run of this recipe has left one. Otherwise the output folder is
    emptied: what is in it is of another recipe."""
    work = Path(arguments.output_dir)
    started = work / "recipe.txt"
    with arguments.main_process_first(local=False):
        known = started.is_file() and started.read_text() == artifact.digest(recipe)
        if not known and arguments.process_index == 0:
            for path in work.parent.iterdir():
                if path.name != artifact.UNFINISHED:
                    artifact.remove(path)
            work.mkdir()
            artifact.write_text(started, artifact.digest(recipe))


def dataset(generator: Callable[..., Iterator[dict[str, Any]]], values: dict[str, Any], arguments: Any) -> Any:
    """What a generator yields, in a file in the working folder, so that it can be larger than memory."""
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        with arguments.main_process_first():
            return Dataset.from_generator(generator, gen_kwargs=values, cache_dir=arguments.output_dir)
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, SchemaInferenceError):
            raise CaiError("no training example: there is too little text, or the file is empty") from None
        raise error.__cause__ or error from None


def run(
    trainer: Trainer, label: str, estimate: bool, encoder: EncoderConfig, tokenizer: Any, output: Path
) -> artifact.Stats | None:
    """Train, from the last complete checkpoint on if there is one, and write the result to `output`: model, tokenizer,
    encoder.yaml, log.json and its plots.

    Returns statistics in the first process, None in the others.
    """
    trainer.add_callback(TimedCheckpoints())
    trainer.add_callback(Progress(trainer, label, estimate))
    evaluates = trainer.eval_dataset is not None
    stats: artifact.Stats = {}
    if evaluates:
        stats["held_out_loss_before"] = trainer.evaluate()["eval_loss"]
    result = trainer.train(resume_from_checkpoint=_last_checkpoint(Path(trainer.args.output_dir)))
    if evaluates:
        stats["held_out_loss_after"] = trainer.evaluate()["eval_loss"]
    if not trainer.is_world_process_zero():
        return None
    trainer.model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    write_encoder(encoder, output)
    _write_log([entry for entry in trainer.state.log_history if "train_runtime" not in entry], output)
    return stats | {"steps": trainer.state.global_step, "loss": result.training_loss}


def _last_checkpoint(work: Path) -> str | None:
    """The last checkpoint that is complete."""
    checkpoints = sorted(work.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    return next((str(path) for path in reversed(checkpoints) if _is_complete(path)), None)


def _is_complete(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return all((checkpoint / name).is_file() for name in CHECKPOINT_FILES)


def _write_log(log: list[dict[str, Any]], output: Path) -> None:
    """log.json, and plots of the losses (loss.png) and of the active dimensions (active.png)."""
    artifact.write_text(output / "log.json", json.dumps(log, indent=1) + "\n")
    for suffix in ("loss", "active"):
        names = sorted({key for entry in log for key in entry if key.endswith(suffix)})
        lines = {
            name: (
                [entry["step"] for entry in log if name in entry],
                [entry[name] for entry in log if name in entry],
            )
            for name in names
        }
        if lines:
            plot_lines(output / f"{suffix}.png", "step", suffix, lines)


def step_seconds(trainer: Trainer, batches: Sequence[dict[str, Any]]) -> float:
    """How long a step takes, measured on `batches` after a first pass over them, in which kernels are compiled."""
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=0.0)
    model, optimizer = trainer.accelerator.prepare(trainer.model, optimizer)
    trainer.current_gradient_accumulation_steps = 1  # transformers sets it in the loop that this stands for
    for _ in range(2):
        start = time.perf_counter()
        for batch in batches:
            trainer.training_step(model, batch).item()
            optimizer.step()
            optimizer.zero_grad()
    seconds = (time.perf_counter() - start) / len(batches)
    return trainer.args.gradient_accumulation_steps * seconds
