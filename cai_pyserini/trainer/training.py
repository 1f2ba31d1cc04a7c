"""Running transformers.Trainer so that its result is an artifact that an interrupted training continues.

The checkpoints of a training are in `output`/training while it runs. What is resumed ends in the same weights, bit by
bit, as what was never interrupted.
"""

import json
import math
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from datasets import Dataset, disable_progress_bars
from datasets.arrow_writer import SchemaInferenceError
from datasets.exceptions import DatasetGenerationError
from transformers import PrinterCallback, TrainerCallback, TrainingArguments
from transformers.utils import logging

from cai_pyserini.core import artifact
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.figures import plot_lines
from cai_pyserini.models.device import resolve_device, resolve_precision
from cai_pyserini.models.splade import load_masked_lm
from cai_pyserini.trainer.callbacks import Progress, TimedCheckpoints, duration
from cai_pyserini.trainer.settings import TrainingSettings, write_encoder

WORK = "training"  # the folder for checkpoints, in the output
RESULT = "result"  # the folder for what belongs to the output, in that
CHECKPOINT_FILES = ("optimizer.pt", "scheduler.pt")  # beside trainer_state.json, which is written last
MEASURED = 3  # batches, for an estimate, each twice
WORTH_MEASURING = 60  # batches: the estimate of a shorter training would take too large a share of it


class Trainer(transformers.Trainer):
    """transformers.Trainer without its own lines and bars; `last_loss` is that of the last batch."""

    def __init__(self, *arguments: Any, **more: Any):
        super().__init__(*arguments, **more)
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = False  # each batch's loss is a mean, to be divided by the number of batches
        self.last_loss: Any = float("nan")
        if isinstance(self.train_dataset, Epochs):
            self.add_callback(self.train_dataset)

    def training_step(self, *arguments: Any, **more: Any) -> Any:
        self.last_loss = super().training_step(*arguments, **more)
        return self.last_loss

    def log(self, logs: dict[str, float], *more: Any) -> None:
        for name, value in logs.items():
            if name.endswith("loss") and not math.isfinite(value):
                raise CaiError(
                    f"{name} is {value} at step {self.state.global_step:,}: training has diverged. Lower "
                    "--learning-rate, or set --precision float32"
                )
        super().log(logs, *more)


class Epochs(TrainerCallback, torch.utils.data.Dataset[Any]):
    """A dataset whose items depend on the epoch, from 0, which it learns as a callback of its trainer.

    `item` makes an item of a row, its number and the epoch: so a resumed training has the same ones.
    """

    def __init__(self, rows: Any, item: Callable[[Any, int, int], Any]):
        self._rows = rows
        self._item = item
        self._epoch = 0

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._epoch = int(state.epoch or 0)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Any:
        return self._item(self._rows[number], number, self._epoch)


def total_steps(settings: TrainingSettings, examples: int, processes: int = 1) -> int:
    """The steps of a training: every epoch has all examples, of which each process takes a batch at a time."""
    batches = ceil(ceil(examples / settings.batch_size) / processes)
    return settings.max_steps or ceil(settings.epochs * ceil(batches / settings.accumulate))


def require_one_gpu(device: str) -> None:
    """Raise CaiError if this process would train on several GPUs, or several processes on one."""
    gpus, processes = torch.cuda.device_count() if device != "cpu" else 0, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if gpus > 1 and "LOCAL_RANK" not in os.environ:  # which torchrun sets
        raise CaiError(
            f"one process trains on one GPU, and this one sees {gpus}: choose one, CUDA_VISIBLE_DEVICES=0, or start "
            f"`trainer pretrain`, `splade` or `dense` with `torchrun --nproc-per-node {gpus} -m`"
        )
    if 0 < gpus < processes:
        raise CaiError(
            f"{processes} processes on {gpus} GPUs: start one for each, with torchrun --nproc-per-node {gpus}"
        )


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
            artifact.make(output, recipe, write, resumable=True, result=f"{WORK}/{RESULT}")
        if dist.is_initialized():
            dist.barrier()
    shutil.rmtree(output / WORK, ignore_errors=True)  # after the manifest, without which it is needed
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
        max_steps=settings.max_steps or -1,  # before `run` sets it
        warmup_steps=settings.warmup,  # below 1: a fraction
        weight_decay=settings.weight_decay,
        seed=settings.seed,
        bf16=resolve_precision(settings.precision, device) == "bfloat16",
        use_cpu=device.type == "cpu",
        logging_steps=settings.log_steps,
        logging_nan_inf_filter=False,
        save_strategy="no",  # TimedCheckpoints does
        save_total_limit=1,
        report_to="none",
        remove_unused_columns=False,
        ddp_broadcast_buffers=False,
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        optim="adamw_torch_fused",
    )


def start(arguments: Any, recipe: artifact.Recipe) -> None:
    """Make the working folder, unless an interrupted run of this recipe has left one. Raises CaiError if that run had
    another number of processes."""
    work = Path(arguments.output_dir)
    started = work / "recipe.txt"
    digest, processes = artifact.digest(recipe), str(arguments.world_size)
    with arguments.main_process_first(local=False):
        known, _, before = started.read_text(encoding="utf-8").partition(" ") if started.is_file() else ("", "", "")
        if known == digest and before != processes:
            raise CaiError(
                f"{work.parent} was begun with {before} processes, not {processes}: continue with as many, or delete it"
            )
        if known != digest and arguments.process_index == 0:
            artifact.remove(work)
            work.mkdir()
            artifact.write_text(started, f"{digest} {processes}")


def dataset(generator: Callable[..., Iterator[dict[str, Any]]], values: dict[str, Any], arguments: Any) -> Any:
    """What a generator yields, in a file in the working folder, so that it can be larger than memory."""
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        with arguments.main_process_first():
            return Dataset.from_generator(generator, gen_kwargs=values, cache_dir=arguments.output_dir)
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, SchemaInferenceError):
            raise CaiError("no training example: there is too little text") from None
        raise error.__cause__ or error from None


def run(
    build: Callable[[], Trainer],
    settings: TrainingSettings,
    label: str,
    announce: bool,
    encoder: EncoderConfig,
    tokenizer: Any,
) -> artifact.Stats | None:
    """Train, from the last complete checkpoint on if there is one, and write the result to its folder: model,
    tokenizer, encoder.yaml, log.json and its plots. With `announce`, first say how many steps it takes and how long.

    Returns statistics in the first process, None in the others.
    """
    trainer = build()
    arguments, data = trainer.args, trainer.train_dataset
    steps = arguments.max_steps = total_steps(settings, len(data), arguments.world_size)
    if steps == 1:
        arguments.warmup_steps = 0  # a warm-up begins at a learning rate of 0
    checkpoint, done = _last_checkpoint(Path(arguments.output_dir), arguments.world_size)
    if announce:
        line = f"{label}: {len(data):,} examples, {steps:,} steps"
        if done:
            line += f", {done:,} of them done"
        if (steps - done) * settings.accumulate >= WORTH_MEASURING:
            line += f", about {duration((steps - done) * step_seconds(trainer, data))}"
            trainer = build()  # as if nothing had been measured
        if trainer.is_world_process_zero():
            print(line, file=sys.stderr)
    trainer.add_callback(TimedCheckpoints(settings.save_seconds))
    trainer.add_callback(Progress(trainer, label))
    evaluates = trainer.eval_dataset is not None
    stats: artifact.Stats = {}
    if evaluates:
        stats["held_out_loss_before"] = trainer.evaluate()["eval_loss"]
    loss = trainer.train(resume_from_checkpoint=checkpoint).training_loss
    if evaluates:
        stats["held_out_loss_after"] = trainer.evaluate()["eval_loss"]
    if not trainer.is_world_process_zero():
        return None
    result = Path(arguments.output_dir) / RESULT
    trainer.model.save_pretrained(result)
    tokenizer.save_pretrained(result)
    write_encoder(encoder, result)
    _write_log([entry for entry in trainer.state.log_history if "train_runtime" not in entry], result)
    return stats | {"examples": len(data), "steps": trainer.state.global_step, "loss": loss}


def _last_checkpoint(work: Path, processes: int) -> tuple[str | None, int]:
    """The last checkpoint that is complete, and its step; others are deleted."""
    checkpoints = {int(path.name.rpartition("-")[2]): path for path in work.glob("checkpoint-*")}
    complete = max((step for step, path in checkpoints.items() if _is_complete(path, processes)), default=0)
    if os.environ.get("RANK", "0") == "0":
        for step in checkpoints.keys() - {complete}:
            shutil.rmtree(checkpoints[step])
    return (str(checkpoints[complete]) if complete else None), complete


def _is_complete(checkpoint: Path, processes: int) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    if not all(path.stat().st_size for path in checkpoint.iterdir()):  # after a power cut
        return False
    states = len(list(checkpoint.glob("rng_state*.pth")))  # each process writes its own, perhaps last
    return states == processes and all((checkpoint / name).is_file() for name in CHECKPOINT_FILES)


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


def step_seconds(trainer: Trainer, pool: Any) -> float:
    """How long a step takes, measured on batches drawn from the examples `pool`, after a first pass over them, in which
    kernels are compiled."""
    draw, size = random.Random(0), trainer.args.per_device_train_batch_size
    batches = [trainer.data_collator(draw.choices(pool, k=size)) for _ in range(MEASURED)]
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
