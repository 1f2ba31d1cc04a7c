"""What a shell completes, and the man page: the scripts that it gets, run by the shells themselves."""

import shutil
import subprocess
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from cai_pyserini.cli import COMMANDS
from cai_pyserini.cli.completion import FOLDERS, NAMES, VALUES, all_commands, main
from cai_pyserini.core.settings import Parser

SHELLS = ["bash", "zsh", "fish"]
COMPLETE = """
source completion.bash
while read -r line; do
    COMP_WORDS=($line); [[ $line == *. ]] && COMP_WORDS[-1]=${COMP_WORDS[-1]%.}
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
    _shtab_cai_pyserini
    echo "${COMPREPLY[*]}"
done
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the scripts of all shells, a run folder and a TREC run."""
    folder = tmp_path_factory.mktemp("scripts")
    for shell in SHELLS:
        with (folder / f"completion.{shell}").open("w") as file, redirect_stdout(file):
            main([shell])
    (folder / "runs").mkdir()
    (folder / "rank.trec").touch()
    return folder


def test_bash_completes_commands_flags_choices_names_files_and_folders(scripts: Path) -> None:
    """The line ends with a dot where the last word is empty."""
    expected = {
        "cai-pyserini se": "search serve",
        "cai-pyserini help jud": "judge",
        "cai-pyserini stage index .": "impact bm25 dense",
        "cai-pyserini stage encode --sh": "--shard-id --shard-num",
        "cai-pyserini run hpo --search .": "exact fast",
        "cai-pyserini run scif": "scifact",
        "cai-pyserini run hpo --dense mini": "minilm",
        "cai-pyserini run hpo --systems bm25 trio": "trio trio-doc",  # the second value of a flag
        "cai-pyserini run r": "robust04 rank.trec runs",
        "cai-pyserini search r": "runs",  # only folders
        "cai-pyserini evaluate --trec r": "rank.trec runs",
    }
    lines = "\n".join(expected) + "\n"
    bash = ["bash", "--norc", "-c", COMPLETE]
    done = subprocess.run(bash, input=lines, capture_output=True, text=True, cwd=scripts, check=True)
    assert {line: sorted(reply.split()) for line, reply in zip(expected, done.stdout.splitlines(), strict=True)} == {
        line: sorted(reply.split()) for line, reply in expected.items()
    }


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_can_parse_its_script(scripts: Path, shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} is installed")
    done = subprocess.run(
        [shell, "-n", f"completion.{shell}"], capture_output=True, text=True, cwd=scripts, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_completed_by_names_of_arguments_is_one() -> None:
    """The fault: an argument is renamed, and not completed any more."""
    declared: set[str] = set()

    def collect(parser: Parser) -> None:
        declared.update(action.dest for action in parser._actions)
        for command in parser.commands.values():
            collect(command)

    collect(Parser("cai-pyserini", all_commands()))
    assert {*FOLDERS, *NAMES, *VALUES} <= declared


def test_the_man_page_has_every_command_and_no_line_that_roff_takes_for_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # not of the page
    main(["man"])
    page = capsys.readouterr().out
    assert {f'.SH "cai-pyserini {name}"' for name in COMMANDS} <= {*page.splitlines()}
    assert '.SH "cai-pyserini stage index bm25"' in page and r"\-\-shard\-num" in page
    own = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert own == {".TH", ".SH", ".nf", ".fi"}
