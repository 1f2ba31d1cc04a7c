"""Run transformers.Trainer so that its result is an artifact, and an interrupted training resumes.

While a training runs, its checkpoints are beside the output, in `<output>.training`. A resumed training ends with
bitwise the same weights as one without interruption, and evaluations change no weights.
"""

import json
import math
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset, disable_progress_bars
from datasets.exceptions import DatasetGenerationError
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback, TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, TensorBoardCallback
from transformers.trainer_utils import EvalLoopOutput
from transformers.utils import logging

from cai_pyserini.core import artifact, files
from cai_pyserini.core.config import EncoderConfig
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.figures import plot_lines
from cai_pyserini.models.device import resolve_device, resolve_precision
from cai_pyserini.models.splade import load_masked_lm
from cai_pyserini.trainer.settings import NDCG, TrainingSettings, write_encoder

RESULT_FOLDER = "result"  # of the files of the output, in the folder of the checkpoints
SHOWN = {"loss": "loss", "eval_loss": "held-out loss", f"eval_{NDCG}": NDCG}  # on stderr, by name in the log
LEARNED, CHANCE = 0.5, 0.99  # of the loss that equal scores have: training has learned; it has forgotten
AT_CHANCE = 3  # logs in a row


class Trainer(transformers.Trainer):
    """A transformers.Trainer that does not print to stdout, and stops when training diverges or collapses. Its
    evaluations leave the random state as it is; `ndcg`, if any, measures nDCG@10 in each."""

    ndcg: Callable[[], float] | None = None

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.remove_callback(PrinterCallback)
        self.model_accepts_loss_kwargs = False  # losses are means per batch, to be divided by the number of batches
        self._terms: defaultdict[str, list[torch.Tensor]] = defaultdict(list)  # since the last log
        if isinstance(self.train_dataset, Epochs):
            self.add_callback(self.train_dataset)

    def note(self, terms: Mapping[str, torch.Tensor]) -> None:
        """Log the means of these values of the training's batches."""
        for name, value in terms.items():
            if self.model.training:
                self._terms[name].append(value.detach())

    def log(self, logs: dict[str, float], *more: Any) -> None:
        if "eval_runtime" not in logs:
            terms, self._terms = self._terms, defaultdict(list)
            logs |= {name: float(torch.stack(values).mean()) for name, values in terms.items()}
        for name, value in logs.items():
            if name.endswith("loss") and not math.isfinite(value):
                raise self.diverged_error(f"{name} is {value}")
        super().log(logs, *more)
        if shown := [f"{label} {logs[name]:.4g}" for name, label in SHOWN.items() if name in logs]:
            print(f"step {self.state.global_step:,}/{self.args.max_steps:,}, {', '.join(shown)}", file=sys.stderr)
        history = [entry for entry in self.state.log_history if "chance_loss" in entry]
        shares = [entry["ranking_loss"] / max(entry["chance_loss"], 1e-9) for entry in history]
        if shares and min(shares) < LEARNED and min(shares[-AT_CHANCE:]) >= CHANCE:
            last = history[-1]
            raise CaiError(
                f"step {last['step']:,}: the ranking loss has risen to {last['ranking_loss']:.4g}, no better than the "
                f"{last['chance_loss']:.4g} of equal scores: collapse. Lower learning_rate, or raise warmup"
            )

    def _run_epoch(self, **settings: Any) -> None:
        state = self.state
        state.compute_steps(self.args, self.args.max_steps)  # of these settings, not of the checkpoint's
        if state.best_global_step:
            state.best_model_checkpoint = str(Path(self.args.output_dir, f"checkpoint-{state.best_global_step}"))
        if state.global_step < self.args.max_steps:  # transformers adds a step if it resumes after the last one
            super()._run_epoch(**settings)

    def evaluate(self, *arguments: Any, **settings: Any) -> dict[str, float]:
        with torch.random.fork_rng([self.args.device] if self.args.device.type == "cuda" else []):
            return super().evaluate(*arguments, **settings)

    def evaluation_loop(self, *arguments: Any, **settings: Any) -> EvalLoopOutput:
        output = super().evaluation_loop(*arguments, **settings)
        output.metrics.pop("eval_model_preparation_time", None)
        if self.ndcg:
            output.metrics[f"eval_{NDCG}"] = self.ndcg()
        return output

    @torch.no_grad()
    def prediction_step(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> Any:
        return self.compute_loss(model, self._prepare_inputs(inputs)), None, None

    def diverged_error(self, what: str) -> CaiError:
        step = f"step {self.state.global_step:,}"
        return CaiError(f"{what} at {step}: training has diverged. Lower learning_rate, or set precision float32")


@dataclass
class Arguments(TrainingArguments):
    """Training arguments for the GPU with this number only; transformers would use the first one, or all."""

    gpu: int = 0

    @cached_property
    def _setup_devices(self) -> torch.device:
        device: torch.device = super()._setup_devices
        if device.type != "cuda":
            return device
        self._n_gpu = 1
        torch.cuda.set_device(self.gpu)
        return torch.device("cuda", self.gpu)


class Epochs(TrainerCallback, torch.utils.data.Dataset[Any]):
    """A dataset whose items depend on the epoch, from 0, which it learns as a callback of its trainer. `item` makes an
    item from a row, its number and the epoch, so that a resumed training gets the same items."""

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


class TimedCheckpoints(TrainerCallback):
    """Save a checkpoint when the last one is `seconds` old."""

    def __init__(self, seconds: float):
        self._seconds = seconds

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._saved = time.monotonic()

    on_save = on_train_begin

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if time.monotonic() - self._saved >= self._seconds:
            control.should_save = True


def total_steps(settings: TrainingSettings, examples: int) -> int:
    """The number of steps of a training. Every epoch has all examples."""
    batches = ceil(examples / settings.batch_size)
    return settings.max_steps or ceil(settings.epochs * ceil(batches / settings.accumulate))


def load_model(checkpoint: Path, dropout: float | None = None) -> Any:
    """Load a masked language model to train, with this dropout probability, by default the checkpoint's."""
    model, decoder = load_masked_lm(checkpoint)
    del decoder.forward
    return rebuild(model, dropout)


def rebuild(loaded: Any, dropout: float | None = None) -> Any:
    """Rebuild a model so that checkpoints use current parameter names, and set its dropout probability, if any.

    transformers saves a loaded model under the parameter names of its checkpoint. When a training resumes, it would
    silently ignore parameters with old names ("gamma").
    """
    model = type(loaded)(loaded.config)
    if hasattr(model, "pooler"):
        model.pooler = loaded.pooler  # may be None
    model.load_state_dict(loaded.state_dict())
    if dropout is not None:
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = dropout
    return model


def make(
    settings: TrainingSettings, recipe: artifact.Recipe, train: Callable[[TrainingArguments], artifact.Stats]
) -> Path:
    """Make the artifact of a training; `train` returns the result of `run`. Checkpoints are beside the output, where an
    interrupted training of the same recipe continues. Raises CaiError for a device that does not exist, and if torchrun
    has started several processes."""
    resolve_device(settings.device)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise CaiError("a training runs in one process, on one GPU: start it without torchrun")
    output = settings.output
    work = output.with_name(f"{output.name}.training") / artifact.digest(recipe)

    def write(folder: Path) -> artifact.Stats:
        stats = train(training_arguments(settings, work))
        for path in (work / RESULT_FOLDER).iterdir():
            path.rename(folder / path.name)
        return stats

    artifact.make(output, recipe, write)
    if settings.keep and (checkpoints := [*work.glob("checkpoint-*")]):
        _keep(checkpoints, output)
    shutil.rmtree(work.parent, ignore_errors=True)  # needed until the manifest is written
    return output


def _keep(checkpoints: list[Path], output: Path) -> None:
    """Move checkpoints to `<output>.checkpoints`, as encoders like the output."""
    kept = output.with_name(f"{output.name}.checkpoints")
    kept.mkdir(exist_ok=True)
    for path in kept.glob("checkpoint-*"):
        files.remove(path)
    for checkpoint in checkpoints:
        shutil.move(checkpoint, kept / checkpoint.name)
        for name in ("encoder.yaml", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(output / name, kept / checkpoint.name)


def training_arguments(settings: TrainingSettings, work: Path) -> TrainingArguments:
    """The training arguments, with the working folder `work`."""
    logging.set_verbosity_error()
    for name in settings.report_to:
        _require_reporter(name)
    device = resolve_device(settings.device)
    return Arguments(
        output_dir=str(work),
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps or -1,  # `run` sets the number
        lr_scheduler_type=settings.scheduler or "linear",
        warmup_steps=settings.warmup,  # below 1: a fraction
        weight_decay=settings.weight_decay,
        seed=settings.seed,
        bf16=resolve_precision(settings.precision, device) == "bfloat16",
        use_cpu=device.type == "cpu",
        logging_steps=settings.log_steps,
        logging_first_step=True,  # what the base knows, to see a collapse
        logging_nan_inf_filter=False,
        save_strategy="best" if settings.keep_best else "no",  # TimedCheckpoints saves others
        save_total_limit=settings.keep or 1,
        load_best_model_at_end=settings.keep_best is not None,
        metric_for_best_model=settings.keep_best,
        restore_callback_states_from_checkpoint=True,
        report_to=settings.report_to or "none",
        run_name=settings.output.name,
        remove_unused_columns=False,
        disable_tqdm=True,
        optim="adamw_torch_fused",
        gpu=device.index or 0,
    )


def dataset(generator: Callable[..., Iterator[dict[str, Any]]], arguments: TrainingArguments, **values: Any) -> Any:
    """Store the rows of generator(**values) in the working folder, so that they need not fit in memory."""
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        return Dataset.from_generator(generator, gen_kwargs=values, cache_dir=arguments.output_dir)
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None


def run(
    label: str, trainer: Trainer, settings: TrainingSettings, encoder: EncoderConfig, tokenizer: Any
) -> artifact.Stats:
    """Train, continuing after the last complete checkpoint, if any, and write the model, tokenizer, encoder.yaml,
    log.json and curve.png to RESULT_FOLDER; the last two also if the training fails."""
    arguments, data, work = trainer.args, trainer.train_dataset, Path(trainer.args.output_dir)
    steps = arguments.max_steps = total_steps(settings, len(data))
    if steps == 1:
        arguments.warmup_steps = 0  # a warm-up starts with a learning rate of 0
    checkpoint, result = _last_checkpoint(work), work / RESULT_FOLDER
    done = f", {_step(checkpoint):,} of them done" if checkpoint else ""
    print(f"{label}: {len(data):,} examples, {steps:,} steps{done}", file=sys.stderr)
    trainer.add_callback(TimedCheckpoints(settings.save_seconds))
    if settings.patience:
        trainer.add_callback(transformers.EarlyStoppingCallback(settings.patience))
    if trainer.eval_dataset is not None:
        arguments.eval_strategy, arguments.eval_steps = "steps", settings.eval_steps or steps
        arguments.eval_on_start = not checkpoint
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and not callback.logging_dir:
            callback.logging_dir = str(settings.output.with_name(f"{settings.output.name}.logs") / work.name)
    try:
        loss = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None).training_loss
    finally:
        _write_log(log := trainer.state.log_history, result)
        if "wandb" in settings.report_to:
            import_module("wandb").finish()  # another training of this process is another run
    if checkpoint and (losses := [entry["loss"] for entry in log if "loss" in entry]):
        loss = sum(losses) / len(losses)  # transformers' is of the steps since the checkpoint
    if any(not value.isfinite().all() for value in trainer.model.state_dict().values() if value.is_floating_point()):
        raise trainer.diverged_error("a weight is not finite")  # the last step can cause it despite a finite loss
    trainer.model.save_pretrained(result)
    save_tokenizer(tokenizer, result)
    write_encoder(encoder, result)
    return _evaluated(trainer.state) | {"examples": len(data), "steps": trainer.state.global_step, "loss": loss}


def _evaluated(state: transformers.TrainerState) -> artifact.Stats:
    """The held-out loss and nDCG@10 before the training, and with the weights that it ends with."""
    stats: artifact.Stats = {"best_step": state.best_global_step} if state.best_global_step else {}
    evaluations = {entry["step"]: entry for entry in state.log_history if "eval_runtime" in entry}
    before, after = (evaluations.get(step, {}) for step in (0, state.best_global_step or state.global_step))
    for name in ("loss", NDCG):
        if before.keys() & after.keys() & {f"eval_{name}"}:
            pair = before[f"eval_{name}"], after[f"eval_{name}"]
            stats[f"held_out_{name}_before"], stats[f"held_out_{name}_after"] = pair
    return stats


def _write_log(history: list[dict[str, Any]], folder: Path) -> None:
    """Write log.json, and curve.png of its losses, nDCG@10 and active dimensions."""
    log = [entry for entry in history if "train_runtime" not in entry]
    files.write_text(folder / "log.json", files.json_text(log))
    names = sorted({name for entry in log for name in entry if not name.startswith("flops")})
    panels: dict[str, Any] = {"loss": {}, NDCG: {}, "active dimensions": {}}
    for y, name in product(panels, names):
        if name.endswith(y.removesuffix(" dimensions")):
            points = [(entry["step"], entry[name]) for entry in log if name in entry]
            panels[y][name] = tuple(zip(*points, strict=True))
    if panels := {y: lines for y, lines in panels.items() if lines}:
        plot_lines(folder / "curve.png", "step", panels)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Save a tokenizer of transformers next to its model, and check it with require_ids."""
    tokenizer.save_pretrained(folder)
    require_ids(folder, tokenizer.get_vocab())


def require_ids(folder: Path, ids: Mapping[str, int]) -> None:
    """Reload a saved tokenizer. Raises CaiError if the id of a token has changed: the library gives new ids to added
    tokens that are not in the vocabulary."""
    saved = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False).get_vocab()
    if changed := sorted(token for token in ids.keys() | saved.keys() if ids.get(token) != saved.get(token)):
        raise CaiError(
            f"{folder}: the reloaded tokenizer has other ids than the checkpoint's for {len(changed):,} tokens, "
            f"such as {changed[0]!r}: put its added tokens into the vocabulary of tokenizer.json"
        )


def _require_reporter(name: str) -> None:
    """Raise CaiError unless transformers can log to `name` without asking anything."""
    if name not in INTEGRATION_TO_CALLBACK:
        raise CaiError(f"report_to {name}: transformers logs to {', '.join(sorted(INTEGRATION_TO_CALLBACK))}")
    try:
        INTEGRATION_TO_CALLBACK[name]()
        online = name == "wandb" and os.environ.get("WANDB_MODE", "online") == "online"
        if online and not import_module("wandb").login(prompt=False):
            raise CaiError("not logged in: run `wandb login`, or set WANDB_MODE=offline")
    except Exception as error:  # of many kinds
        install = f"{sys.executable} -m pip install {name.replace('_', '-')}"
        raise CaiError(f"report_to {name}: {error if find_spec(name) else f'not installed: {install}'}") from None


def _last_checkpoint(work: Path) -> Path | None:
    """Return the last complete checkpoint, and delete incomplete ones."""
    checkpoints = sorted(work.glob("checkpoint-*"), key=_step)
    complete = [path for path in checkpoints if _is_complete(path)]
    for path in checkpoints:
        if path not in complete:
            shutil.rmtree(path)
    return complete[-1] if complete else None


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _is_complete(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))  # which is written last
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return all(path.stat().st_size for path in checkpoint.iterdir())  # a power cut leaves empty files
