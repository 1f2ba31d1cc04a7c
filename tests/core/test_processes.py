"""Work in several processes: results, errors, and that no process is left."""

import multiprocessing
import os
import time
from collections.abc import Generator

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.processes import MOST, processes_for, spread


@pytest.mark.parametrize(
    "size, threads, expected",
    [(0, 8, 1), (19, 8, 1), (20, 8, 2), (1000, 8, 8), (1000, 1, 1), (1000, 0, MOST), (1000, 40, 40)],
)
def test_the_number_of_processes(size: int, threads: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert processes_for(size, 10, threads) == expected


def squares(numbers: range) -> Generator[tuple[int, int]]:
    for number in numbers:
        yield number**2, os.getpid()


def test_one_part_is_done_in_this_process() -> None:
    with spread(squares, [range(3)]) as results:
        assert list(results) == [(0, os.getpid()), (1, os.getpid()), (4, os.getpid())]


@pytest.mark.slow
def test_several_parts_get_a_process_each() -> None:
    with spread(squares, [range(5), range(5, 7)]) as results:
        found = list(results)
    with spread(squares, [range(1)], apart=True) as results:
        assert os.getpid() not in dict(results).values()
    first, second = dict(found)[0], dict(found)[36]
    assert len({first, second, os.getpid()}) == 3
    assert [square for square, process in found if process == first] == [0, 1, 4, 9, 16]
    assert [square for square, process in found if process == second] == [25, 36]


def fail(part: str) -> Generator[str]:
    yield part
    if part == "endless":
        time.sleep(600)
    if part == "dies":
        os._exit(3)
    if part == "full":
        raise OSError(28, "No space left on device", "file")
    raise CaiError("line 7 is broken")


@pytest.mark.slow
@pytest.mark.parametrize(
    "part, error, message",
    [
        ("broken", CaiError, "line 7 is broken"),
        ("full", OSError, "No space left on device: 'file'"),
        ("dies", CaiError, r"a worker process died \(exit code 3\); if it ran out of memory, use"),
    ],
)
def test_an_error_ends_all(part: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message), spread(fail, ["endless", part]) as results:
        list(results)
    assert not multiprocessing.active_children()


def test_no_process_survives_an_interruption() -> None:
    with pytest.raises(KeyboardInterrupt), spread(fail, ["endless", "endless"]) as results:
        assert next(results) == "endless"
        raise KeyboardInterrupt
    assert not multiprocessing.active_children()
