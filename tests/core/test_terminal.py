"""Exit codes, messages, interrupts and closed pipes of commands."""

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cai_pyserini.core import terminal
from cai_pyserini.core.errors import CaiError


def raising(error: BaseException) -> Callable[[], int]:
    def main() -> int:
        raise error

    return main


def exit_code(main: Callable[[], int | None]) -> int:
    with pytest.raises(SystemExit) as exit:
        terminal.run(main)
    assert isinstance(exit.value.code, int)
    return exit.value.code


@pytest.mark.parametrize("returned, code", [(None, 0), (0, 0), (3, 3)])
def test_the_exit_code_of_a_command_that_returns(returned: int | None, code: int) -> None:
    assert exit_code(lambda: returned) == code


def test_notes_and_warnings_are_lines_of_stderr() -> None:
    text = "import logging as l; from cai_pyserini.core import terminal; m = l.getLogger('cai_pyserini.x'); "
    text += "terminal.run(lambda: [l.getLogger('other').info('no'), m.info('a'), m.warning('b')] and None)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "note: a\nwarning: b\n")


@pytest.mark.parametrize(
    "error, code, message",
    [
        (CaiError("a.yaml:3: not YAML"), 1, "a.yaml:3: not YAML"),
        (KeyboardInterrupt(), 130, "interrupted; run the same command again to continue"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/a/b"), 1, "/a/b: Permission denied"),
        (OSError("the hub is down"), 1, "the hub is down"),
    ],
)
def test_an_expected_failure_is_one_line(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    list(terminal.progress(iter("abc"), None, "letters"))  # shown only on a terminal
    assert exit_code(raising(error)) == code
    assert capsys.readouterr() == ("", f"error: {message}\n")


# Real processes.


def python(code: str) -> list[str]:
    """The command line of a program whose main() is this code."""
    lines = "".join(f"    {line}\n" for line in code.splitlines())
    return [sys.executable, "-c", f"from cai_pyserini.core import terminal\ndef main():\n{lines}terminal.run(main)"]


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """The end of a pipe to write to, whose other end is closed."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_a_reader_that_closes_the_pipe_ends_the_command_quietly() -> None:
    lines = "for i in range(1_000_000):\n    print('line', i)"
    with subprocess.Popen(python(lines), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "line 0\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 141


def test_a_help_that_nobody_reads_ends_quietly(closed_pipe: int) -> None:
    """The fault: argparse ends the help with SystemExit, and what is left in the buffer fails when Python ends."""
    code = "import argparse\nargparse.ArgumentParser().parse_args(['--help'])"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes = {"stdout": closed_pipe, "stderr": subprocess.PIPE}
    done = subprocess.run(python(code), **pipes, text=True, check=False, env=buffered)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_stream_is_an_empty_one(closed: str) -> None:
    code = shlex.join(python("import sys\nprint(repr(sys.stdin.read()))\nraise terminal.CaiError('wrong')"))
    done = subprocess.run(
        ["bash", "-c", f"{code} {closed}"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == (b"" if closed == ">&-" else b"''\n")
    assert done.stderr == (b"" if closed == "2>&-" else b"error: wrong\n")


def test_an_error_that_nobody_reads_ends_quietly(closed_pipe: int) -> None:
    """`2>&1 | head`, with a bar or a note after what head reads."""
    code = "import sys\nprint('done', flush=True, file=sys.stderr)"
    done = subprocess.run(python(code), stdout=closed_pipe, stderr=closed_pipe, check=False)
    assert done.returncode == 141


@pytest.mark.parametrize("environment, bold", [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_bold_and_bars_fit_the_terminal(
    on_terminal: Callable[..., str], monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], bold: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    got = on_terminal(*python("print(terminal.shows_bold())\nlist(terminal.progress([1], 1, 'bar'))"))
    assert got.startswith(str(bold)) and ("bar" in got) == (environment.get("TERM") != "dumb")


def test_columns_of_the_environment_come_first(
    on_terminal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert on_terminal(*python("from cai_pyserini.core import bars\nprint(bars.columns())")) == "49\n"


EVIL = "\x1b]0;title\x07 \x1b[2J \x9b1A \u202etxt.exe \r hidden"
SHOWN = r"\u001b]0;title\u0007 \u001b[2J \u009b1A \u202etxt.exe \u000d hidden"


def test_control_characters_are_escaped_on_a_terminal(on_terminal: Callable[..., str]) -> None:
    got = on_terminal(
        *python(
            "import logging, json\n"
            "from cai_pyserini.core.errors import CaiError\n"
            f"evil = {EVIL!r}\n"
            "print(f'{terminal.BOLD}{evil}{terminal.PLAIN}')\n"
            "print(json.dumps(evil, ensure_ascii=False))\n"
            "logging.getLogger('x').warning('%s', evil)\n"
            "for _ in terminal.progress([1, 2], 2, evil):\n"
            "    list(terminal.progress([1], 1, 'inner bar'))\n"
            "raise CaiError(evil)"
        )
    )
    assert got.startswith(f"\x1b[1m{SHOWN}\x1b[0m\n")
    assert json.loads(got.splitlines()[1]) == EVIL
    assert f"warning: {SHOWN}\n" in got and got.endswith(f"error: {SHOWN}\n")
    assert f"\r{SHOWN}: 100%" in got and "\rinner bar: 100%" in got and "\x1b[A" in got  # bars still move
    assert not re.search(r"\x1b(?!\[[01]m|\[A)|[\x07\x9b\u202e]", got)


STEPS = """
import logging
from pathlib import Path
from cai_pyserini.core import artifact, bars, steps
bars.INTERVAL = 0
def step(name):
    def write(path):
        path.touch()
        for _ in terminal.progress(range(40), 40, "outer", "contexts"):
            list(terminal.progress(range(3), 3, "inner", "words"))
        logging.getLogger("cai_pyserini.x").warning("a warning")
        list(terminal.progress(iter(range(5)), None, "without a total", "queries"))
    output = Path(FOLDER, name)
    return steps.Call(name, output, lambda: artifact.make(output, {"stage": name}, write, folder=False))
planned = [step("expand"), step("a step with a name that is far too long for a terminal")]
steps.run(planned, {planned[0].output: 5000.0, planned[1].output: 70.0})
"""


def test_a_step_has_one_line_which_fits_the_terminal_and_the_finished_steps_stay(
    on_terminal: Callable[..., str], tmp_path: Path
) -> None:
    """The faults: bars that stay, nested bars on lines of their own, lines that wrap, a warning within a line."""
    got = on_terminal(*python(STEPS.replace("FOLDER", repr(str(tmp_path)))), columns=60)
    drawn = {frame.rstrip() for frame in re.split(r"[\r\n]", got)}
    assert max(map(len, drawn)) < 60 and "\x1b" not in got
    for line in (
        r"\[1/2\] expand  100%  1:2\d:\d\d left, 84 min in all",
        r"\[1/2\] expand  \d queries  1:2\d:\d\d left, 84 min in all",
        r"\[2/2\] a step with a name.*…  100%  1:\d\d left, \d\d s in all",
    ):
        assert any(re.fullmatch(line, frame) for frame in drawn), line
    assert not any("words" in frame or "inner" in frame for frame in drawn)
    stays = [line.rpartition("\r")[2].rstrip() for line in got.split("\n")]
    assert [re.sub(r" +[\d.]+ s$", "", line) for line in stays if line] == [
        "warning: a warning",
        "[1/2] expand",
        "warning: a warning",
        "[2/2] a step with a name that is far too long f…",
    ]


def test_piped_output_is_unchanged() -> None:
    done = subprocess.run(python(f"print({EVIL!r})"), capture_output=True, check=True)
    assert done.stdout.decode() == EVIL + "\n"
