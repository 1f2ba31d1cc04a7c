"""Training, and adaptation without labels: texts and training files -> checkpoints, each with an encoder.yaml.

texts ──► vocabulary ──► pretrain ──► splade or dense ──► checkpoint
                                           ▲
generate, mine, msmarco, score ──► training file

pairs.py has `splade` and `dense`, training_files.py `mine`, `msmarco` and `score`; training.py runs
transformers.Trainer.
adapt.py makes pseudo queries, trains on them, and lets choice.py decide whether the result replaces the encoders.
"""
