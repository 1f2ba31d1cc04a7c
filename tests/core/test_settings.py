"""Settings: valid command lines and YAML files, and the messages for mistakes."""

import io
from pathlib import Path
from typing import ClassVar, Literal, Self

import pytest
from pydantic import model_validator

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import AnyPath, Group, InputFile, Settings, flag, parse, read_yaml
from cai_pyserini.experiments.settings import RunSettings


class Train(Settings):
    """Train a model.

    Interrupted, the same command continues.
    """

    example: ClassVar[str] = "python -m train --data data --output model"
    data: list[AnyPath] = flag(help="files to read")
    output: AnyPath = flag(help="folder to write")
    config: AnyPath | None = flag(None, "YAML file of these settings")
    kind: Literal["sparse", "dense"] = flag("sparse", "of vectors")
    learning_rate: float = flag(2e-5, "of AdamW; 10 % are warm-up", gt=0)
    steps: int | None = flag(None, "at most", ge=1)
    shuffle: bool = flag(False, "in another order every epoch")
    start: int = flag(0, "first step")
    stop: int = flag(9, "last step")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.start > self.stop:
            raise ValueError(f"--start {self.start} is after --stop {self.stop}")
        return self


class Show(Settings):
    """Show a run."""

    example: ClassVar[str] = "python -m show RUN"
    run: AnyPath = flag(help="run to show", positional=True)
    depth: int = flag(10, "hits per query", ge=1)


REQUIRED = ["--data", "a", "b", "--output", "o"]


def train(*arguments: object) -> Train:
    return parse(Train, [str(argument) for argument in arguments], "train")


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The message of argparse for an invalid command line, which exits with 2."""
    with pytest.raises(SystemExit) as exit:
        train(*arguments)
    out, err = capsys.readouterr()
    assert (exit.value.code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.endswith(" `train --help` says more")
    return line


@pytest.fixture
def yaml_file(tmp_path: Path):
    """Write a YAML file."""

    def write(text: str) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


# Command lines.


def test_flags_have_the_types_of_their_values() -> None:
    given = train(*REQUIRED, "--kind", "dense", "--learning-rate", "1e-3", "--steps", 5, "--shuffle")
    assert given.data == [Path("a"), Path("b")]
    assert given.output == Path("o")
    assert (given.kind, given.learning_rate, given.steps, given.shuffle) == ("dense", 1e-3, 5, True)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--output", "o"], "--data is required"),
        (["--data", "a"], "--output is required"),
        ([*REQUIRED, "--steps", "0"], "--steps: 0 should be greater than or equal to 1"),
        ([*REQUIRED, "--learning-rate", "nan"], "--learning-rate: nan should be a finite number"),
        ([*REQUIRED, "--steps", "1.5"], "argument --steps: invalid int value: '1.5'"),
        ([*REQUIRED, "--kind", "both"], "argument --kind: invalid choice: 'both'; choose from"),
        ([*REQUIRED, "--setps", "1"], "unrecognized arguments: --setps 1; did you mean --steps or"),
        (["--setps", "1"], "unrecognized arguments: --setps 1; did you mean --steps or"),  # before --data is required
        ([*REQUIRED, "--learning", "1"], "unrecognized arguments: --learning 1; did you mean --learning-rate?"),
        (["--data", "a", "--output", "-"], "--output: '-' is standard input or output: give a path"),
        ([*REQUIRED, "--start", "10"], "--start 10 is after --stop 9"),
        (["--data", "a", "--output", "s3://b/o"], "--output: 's3://b/o' is a URL: give a path on this machine"),
    ],
)
def test_a_wrong_command_line_is_explained(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert usage_error(capsys, *arguments).startswith(f"train: error: {message}")


def test_the_help_fits_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The faults: paragraphs wider than the terminal, and names that end at a hyphen."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parse(RunSettings, ["--help"], "run")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and not [line for line in lines if line.endswith("-") or line == "  "]


def test_without_arguments_there_is_a_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The fault: a newcomer who types the bare command gets a grammar, or starts hours of work."""
    with pytest.raises(SystemExit, match="2"):
        train()
    lines = capsys.readouterr().err.splitlines()
    assert lines[:4] == ["Train a model.", "", "example:", "  python -m train --data data --output model"]
    assert lines[-1].startswith("train: error: --data is required; --output is required")


def test_the_help_has_descriptions_defaults_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        train("--help")
    text = capsys.readouterr().out
    assert exit.value.code == 0
    assert "Train a model.\n\nInterrupted, the same command continues.\n" in text
    assert "of AdamW; 10 % are warm-up (default: 2e-05)" in " ".join(text.split())
    assert "in another order every epoch\n" in text  # no default is shown for False, 0 and None
    assert text.endswith("example:\n  python -m train --data data --output model\n")


def test_the_first_argument_chooses_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    commands = Group("All of it.", {"train": Train, "show": Show, "more": Group("And more.", {"show": Show})})
    assert parse(commands, ["show", "a.trec"], "run") == Show(run=Path("a.trec"))
    assert parse(commands, ["more", "show", "a.trec"], "run") == Show(run=Path("a.trec"))
    assert isinstance(parse(commands, ["train", *REQUIRED], "run"), Train)
    for arguments, message in (
        ([], "run: error: COMMAND is required first; choose from train, show, more;"),
        (["--depth", "3", "show"], "run: error: COMMAND is required first; choose from train, show, more;"),
        (["tarin"], "run: error: argument COMMAND: invalid choice: 'tarin'; did you mean train?"),
        (["show", "a", "--depth", "0"], "run show: error: --depth: 0 should be greater than or equal to 1"),
        (["show"], "run show: error: run is required;"),
        (
            ["more", "show", "--deep", "3"],
            "run more show: error: unrecognized arguments: --deep; did you mean --depth?",
        ),
    ):
        with pytest.raises(SystemExit) as exit:
            parse(commands, arguments, "run")
        assert exit.value.code == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith(message)
    with pytest.raises(SystemExit) as exit:
        parse(commands, ["--help"], "run")
    text = capsys.readouterr().out
    assert exit.value.code == 0
    assert "All of it." in text
    assert [line.split() for line in text.splitlines() if "a " in line and "." in line][-2:] == [
        ["train", "Train", "a", "model."],
        ["show", "Show", "a", "run."],
    ]
    assert "And more." in text


def test_a_file_may_be_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spooled, because files are read twice; one that is named twice is the same."""

    class Read(Settings):
        files: list[InputFile] = flag(help="files", positional=True)

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xff\n")))
    first, second, path = parse(Read, ["-", "-", "./-"], "read").files
    assert (first.read_bytes(), first, path) == (b"a\xff\n", second, Path("./-"))


# YAML files.


def test_values_come_from_the_file_unless_flags_are_given(yaml_file) -> None:
    path = yaml_file("data: [a, b]\noutput: o\nsteps: 7\nkind: dense\nshuffle: true\n")
    given = train("--config", path, "--steps", 5, "--output", "p")
    assert given == Train(
        data=[Path("a"), Path("b")], output=Path("p"), config=path, steps=5, kind="dense", shuffle=True
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ('steps: "7"', "steps: '7' should be a valid integer"),
        ("steps: 0", "steps: 0 should be greater than or equal to 1"),
        ("step: 7", "unknown key step; did you mean steps or stop?"),
        ("x: 7", "unknown key x; known keys: config, data, kind, learning_rate, "),
        ("learning_rate: .inf", "learning_rate: inf should be a finite number"),
    ],
)
def test_a_wrong_value_in_a_file_is_named(yaml_file, text: str, message: str) -> None:
    path = yaml_file(f"{text}\nstop: x\n")
    with pytest.raises(CaiError) as error:
        train("--config", path, *REQUIRED)
    first, second = sorted(str(error.value).splitlines(), key=lambda line: "stop" in line.split()[1])
    assert first.startswith(f"{path}:1: {message}") and second == f"{path}:2: stop: 'x' should be a valid integer"


@pytest.mark.parametrize("number", ["5e-5", "5E-5", "5.e-5", "0.5e-4", ".5e-4", "+50e-6", "5.0e-5"])
def test_numbers_in_yaml_are_read_as_on_the_command_line(yaml_file, number: str) -> None:
    path = yaml_file(f"learning_rate: {number}\noutput: '1e3'\n")
    given = train("--config", path, "--data", "a")
    assert given.learning_rate == train(*REQUIRED, "--learning-rate", number).learning_rate == 5e-5
    assert given.output == Path("1e3")
    assert read_yaml(yaml_file(f"a: {{b: [{number}, '{number}', 5e-5x]}}")) == {"a": {"b": [5e-5, number, "5e-5x"]}}
    for wrong in ("steps: 1e4", "learning_rate: 5e", "learning_rate: 1e999", "shuffle: 1e0", "learning_rate: '5e-5'"):
        with pytest.raises(CaiError, match=wrong.partition(":")[0]):
            train("--config", yaml_file(wrong), *REQUIRED)


def test_flags_can_complete_a_file(yaml_file, capsys: pytest.CaptureFixture[str]) -> None:
    path = yaml_file("data: [a]\noutput: o\nstart: 12\n")
    assert train("--config", path, "--stop", 20).stop == 20
    assert usage_error(capsys, "--config", path).startswith("train: error: --start 12 is after --stop 9;")
    missing = usage_error(capsys, "--config", yaml_file("steps: 7"), "--output", "o")
    assert missing.startswith("train: error: --data is required;")


@pytest.mark.parametrize(
    "data, message",
    [
        (b"a: [8\n", r"mine\.yaml:2: not YAML \(.+\)$"),
        (b"a: 1\n  b: 8\n", r"mine\.yaml:2: not YAML \(.+\)$"),
        (b"a: 1\nb: 8\na: 1\n", r"mine\.yaml:3: not YAML \(a occurs twice\)$"),
        (b"a:\n  b: 8\n  b: 9\n", r"mine\.yaml:3: not YAML \(b occurs twice\)$"),
        (b"just words", r"mine\.yaml: expected `key: value` lines$"),
        (b"a: \x00", r"mine\.yaml: not YAML \(.+\)$"),
        ("a: é".encode("latin-1"), r"mine\.yaml: not YAML \(.+\)$"),
        (b"a: 2020-13-45", r"mine\.yaml: not YAML \(month must be in 1\.\.12\)$"),
        (b"a: !!timestamp x", r"mine\.yaml: not YAML \(.+\)$"),
        (b"[" * 5000, r"mine\.yaml: not YAML \(maximum recursion depth exceeded.*\)$"),
    ],
)
def test_a_file_that_is_not_yaml_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "mine.yaml").write_bytes(data)
    with pytest.raises(CaiError, match=message):
        read_yaml(tmp_path / "mine.yaml")


def test_yaml_is_utf_8_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    for mark in ("", "\ufeff"):
        (tmp_path / "mine.yaml").write_bytes(f"{mark}a: é\n".encode())
        assert read_yaml(tmp_path / "mine.yaml") == {"a": "é"}
    with pytest.raises(CaiError, match=r"no file .*absent\.yaml"):
        read_yaml(tmp_path / "absent.yaml")


# Values in code.


def test_replace_checks_the_new_values() -> None:
    given = Show(run=Path("a"))
    assert given.replace(depth=3) == Show(run=Path("a"), depth=3)
    assert given.depth == 10
    for changes, message in (({"depth": 0}, "depth: 0 should be"), ({"deep": 3}, "unknown key deep; known keys: dep")):
        with pytest.raises(CaiError, match=f"^{message}"):
            given.replace(**changes)
