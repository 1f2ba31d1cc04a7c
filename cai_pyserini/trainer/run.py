"""Running transformers.Trainer so that its result is an artifact: resumed after an interruption, whole or not there."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cai_pyserini import artifact
from cai_pyserini.cli import CaiError
from cai_pyserini.config import EncoderConfig
from cai_pyserini.figure import plot_lines
from cai_pyserini.trainer import settings

RESUMABLE = ("trainer_state.json", "optimizer.pt", "scheduler.pt")  # what a whole checkpoint has, at the least


def load(checkpoint: Path) -> Any:
    """A masked language model to train."""
    from cai_pyserini.splade import load_masked_lm

    loaded, decoder = load_masked_lm(checkpoint)
    del decoder.forward
    return anew(loaded)


def anew(loaded: Any) -> Any:
    """A loaded model, made anew.

    One that from_pretrained has made is saved with the parameter names of its checkpoint, which can be old ones
    ("gamma"), and those a resumption of training would silently leave out.
    """
    model = type(loaded)(loaded.config)
    if hasattr(model, "pooler"):
        model.pooler = loaded.pooler  # perhaps None
    model.load_state_dict(loaded.state_dict())
    return model


def arguments(given: settings.Training, output: Path, recipe: artifact.Recipe) -> Any:
    """TrainingArguments that work in `output`/training, where an earlier run of this recipe may have left off."""
    from transformers import TrainingArguments
    from transformers.utils import logging as transformers_logging

    from cai_pyserini.splade import resolve_device, resolve_precision

    work = output / "training"
    transformers_logging.set_verbosity_error()
    device = resolve_device(given.device)
    arguments = TrainingArguments(
        output_dir=str(work),
        per_device_train_batch_size=given.batch_size,
        per_device_eval_batch_size=given.batch_size,
        gradient_accumulation_steps=given.accumulate,
        learning_rate=given.learning_rate,
        num_train_epochs=given.epochs,
        max_steps=given.max_steps or -1,
        warmup_steps=given.warmup_steps,
        weight_decay=given.weight_decay,
        seed=given.seed,
        bf16=resolve_precision(given.precision, device) == "bfloat16",
        use_cpu=device.type == "cpu",
        logging_steps=given.log_steps,
        save_steps=given.save_steps,
        save_total_limit=2,
        report_to="none",
        remove_unused_columns=False,
        ddp_broadcast_buffers=False,
        ddp_find_unused_parameters=False,
        disable_tqdm=not sys.stderr.isatty(),
    )
    started = work / "recipe.txt"
    with arguments.main_process_first(local=False):
        known = started.is_file() and started.read_text() == artifact.digest(recipe)
        if not known and arguments.process_index == 0:
            artifact.refuse_foreign(output, started.parent.name)
            artifact.remove(output)
            work.mkdir(parents=True)
            artifact.write_text(started, artifact.digest(recipe))
    return arguments


def dataset(generator: Callable[..., Iterator[dict[str, Any]]], given: dict[str, Any], arguments: Any) -> Any:
    """What a generator yields, in a file in the folder of the training, so that it can be larger than memory."""
    from datasets import Dataset, disable_progress_bars
    from datasets.arrow_writer import SchemaInferenceError
    from datasets.exceptions import DatasetGenerationError

    if arguments.disable_tqdm:
        disable_progress_bars()
    try:
        with arguments.main_process_first():
            return Dataset.from_generator(generator, gen_kwargs=given, cache_dir=arguments.output_dir)
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, SchemaInferenceError):
            raise CaiError("no training example: there is too little text, or the file is empty") from None
        raise error.__cause__ or error from None


def run(
    trainer: Any, encoder: EncoderConfig, tokenizer: Any, output: Path, recipe: artifact.Recipe, facts: dict[str, Any]
) -> None:
    """Train, from the last whole checkpoint on where there is one, and make `output` the result: model, tokenizer,
    encoder.yaml, log.json and loss.png."""
    work = Path(trainer.args.output_dir)
    checkpoints = sorted(work.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    whole = [path for path in checkpoints if all((path / name).is_file() for name in RESUMABLE)]
    if trainer.eval_dataset is not None:
        facts["held_out_loss_before"] = trainer.evaluate()["eval_loss"]
    result = trainer.train(resume_from_checkpoint=str(whole[-1]) if whole else None)
    if trainer.eval_dataset is not None:
        facts["held_out_loss_after"] = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        _finish(trainer, result, encoder, tokenizer, output, recipe, facts)
    trainer.accelerator.wait_for_everyone()


def _finish(
    trainer: Any,
    result: Any,
    encoder: EncoderConfig,
    tokenizer: Any,
    output: Path,
    recipe: artifact.Recipe,
    facts: dict[str, Any],
) -> None:
    trainer.model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    settings.write_encoder(encoder, output)
    log = [entry for entry in trainer.state.log_history if "train_runtime" not in entry]
    artifact.write_text(output / "log.json", json.dumps(log, indent=1) + "\n")
    names = sorted({key for entry in log for key in entry if key.endswith("loss") or key.endswith("active")})
    for name in ("loss", "active"):
        lines = {
            key: zip(*[(entry["step"], entry[key]) for entry in log if key in entry], strict=True)
            for key in names
            if key.endswith(name)
        }
        if lines:
            plot_lines(output / f"{name}.png", "step", name, {key: tuple(points) for key, points in lines.items()})  # type: ignore[misc]
    metrics = {
        "steps": trainer.state.global_step,
        "loss": result.training_loss,
        "seconds": result.metrics["train_runtime"],
    }
    artifact.write_manifest(output, recipe, facts | metrics)
    shutil.rmtree(trainer.args.output_dir)
