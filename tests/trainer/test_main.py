"""The commands: help without waiting, files of settings, errors."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cai_pyserini.core import terminal
from cai_pyserini.core.errors import CaiError
from cai_pyserini.idf.__main__ import main as idf
from cai_pyserini.trainer.__main__ import COMMANDS, main


def test_help_needs_no_heavy_package() -> None:
    """Without torch, transformers, datasets and pandas, --help still works: so it starts at once."""
    code = """
import sys
from contextlib import suppress
sys.modules |= dict.fromkeys(("torch", "transformers", "datasets", "pandas", "numpy"))
from cai_pyserini.adapt.__main__ import main as adapt
from cai_pyserini.gpl.__main__ import main as gpl
from cai_pyserini.trainer.__main__ import main as trainer
for main in (trainer, adapt, gpl):
    with suppress(SystemExit):
        main(["--help"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("usage: ") == 3, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"example:\n  python -m cai_pyserini.trainer {command} " in text
    assert "--config" in text and "--output" in text


def test_a_config_file_is_its_difference_from_the_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, output = tmp_path / "run.yaml", str(tmp_path / "model")
    config.write_text("data: none.jsonl\nbase: splade-tiny\nlambdaq: 1\n")
    with pytest.raises(CaiError, match=r"run\.yaml: unknown key lambdaq; known keys: accumulate, base"):
        main(["splade", "--config", str(config), "--output", output])
    config.write_text("data: none.jsonl\nbase: splade-tiny\n")
    with pytest.raises(CaiError, match=r"no file none\.jsonl"):
        main(["splade", "--config", str(config), "--output", output])
    with pytest.raises(CaiError, match=r"no file other\.jsonl"):
        main(["splade", "--config", str(config), "--output", output, "--data", "other.jsonl"])
    for flags, message in (([], "--output is required"), (["--output", output, "--batch-size", "0"], "--batch-size")):
        with pytest.raises(SystemExit) as ended:
            main(["splade", "--config", str(config), *flags])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "command, flags",
    [
        ("splade", ["--data=nowhere", "--base=splade-tiny", "--max-document-length=1024"]),
        ("dense", ["--data=nowhere", "--base=minilm", "--max-document-length=1024"]),
        ("pretrain", ["--corpus=nowhere", "--base=splade-tiny", "--max-length=1024"]),
        ("generate", ["--collection=hpo", "--generator=splade-tiny", "--max-document-length=1024"]),
    ],
)
def test_more_tokens_than_positions_are_refused_first(command: str, flags: list[str], tmp_path: Path) -> None:
    """Which was a RuntimeError when the first long document was read."""
    with pytest.raises(CaiError, match=r"has 512 positions, too few for --max-(document-)?length 1024: set it to 512"):
        main([command, *flags, f"--output={tmp_path / 'out'}"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "run, arguments",
    [
        (idf, "--collection hpo --encoder splade-tiny"),
        (main, "vocabulary --corpus hpo --base splade-tiny"),
        (main, "generate --collection hpo --generator x"),
        (main, "mine --collection hpo --runs x"),
        (main, "msmarco --collection hpo --hard-negatives x --scores y"),
        (main, "score --data x --cross-encoder y"),
    ],
)
def test_torchrun_is_refused_where_every_process_would_write_the_same(
    run: Callable[[list[str]], None],
    arguments: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as ended:
        terminal.run(lambda: run([*arguments.split(), "--output", str(tmp_path / "x")]), torchrun=run is main)
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("error: this command runs in one process: start it without torchrun")
