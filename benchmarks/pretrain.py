"""Masked language modelling: `trainer pretrain`, which computes the logits of masked tokens only, and transformers'
Trainer with the collator and the model's own loss, on as many sequences of the same length.

Times are those of training, without loading and without the measurement of the held-out loss.
"""

import tempfile
from functools import partial

import harness

LENGTH = 128  # tokens of a sequence


def trained(collection: str, encoder: str, steps: int, is_ours: bool) -> harness.Result:
    import transformers

    from cai_pyserini.core.config import load_encoder
    from cai_pyserini.models.folder import model_folder
    from cai_pyserini.trainer import training
    from cai_pyserini.trainer.pretrain import MaskingTrainer, packed

    checkpoint = model_folder(load_encoder(encoder))
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    rows = [*packed(str(checkpoint), [collection], 0, LENGTH)]
    collator = transformers.DataCollatorForLanguageModeling(tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=32, max_steps=steps, save_strategy="no", report_to="none", use_cpu=True
        )
        kind = MaskingTrainer if is_ours else transformers.Trainer
        trainer = kind(training.load_model(checkpoint), arguments, collator, rows)
        return {"seconds": trainer.train().metrics["train_runtime"]}


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--steps", type=int, default=20, help="steps of 32 sequences")
    args = parser.parse_args()
    how = {"collection": args.collection, "encoder": args.encoder, "steps": args.steps}
    peers = {
        "ours": partial(harness.fresh, trained, is_ours=True, **how),
        "transformers.Trainer": partial(harness.fresh, trained, is_ours=False, **how),
    }
    results = harness.rounds(args.repeats, peers)
    mine = results["ours"]
    rows = []
    for name, found in results.items():
        rate = f"{args.steps / harness.middle(found):.2f}"
        rows.append([name, rate, harness.times(found, mine), harness.gigabytes(found)])
    title = f"Pretraining {args.encoder}, {args.steps} steps of 32 × {LENGTH} tokens"
    harness.show(title, ["", "steps per second", "speed-up of ours", "peak memory, GB"], rows)


if __name__ == "__main__":
    main()
