"""Work in several processes: results, errors, and that no process is left."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from cai_pyserini.core import processes
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.processes import MOST, openmp_threads, processes_for, processors, spread

V1 = "30 25 0:26 {top} /sys/fs/cgroup/cpu rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct"
PERIOD = {"cpu/a/cpu.cfs_period_us": "100000"}
V2 = "30 25 0:26 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


@pytest.mark.parametrize(
    "size, threads, expected",
    [(0, 8, 1), (19, 8, 1), (20, 8, 2), (1000, 8, 8), (1000, 1, 1), (1000, 0, MOST), (1000, 40, 40)],
)
def test_the_number_of_processes(size: int, threads: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "processors", lambda: 64)
    assert processes_for(size, 10, threads) == expected


@pytest.mark.parametrize(
    "mount, group, files, expected",
    [
        (V2.format(top="/"), "0::/a/b", {"a/b/cpu.max": "150000 100000"}, 2),  # rounded up
        (V2.format(top="/"), "0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "1000 100000"}, 1),  # of an ancestor
        (V2.format(top="/"), "0::/", {"cpu.max": "300000 100000"}, 3),  # a container with a namespace
        (V2.format(top="/pod/c"), "0::/pod/c", {"cpu.max": "300000 100000"}, 3),  # one without
        (V2.format(top="/pod/c"), "0::/../x", {"cpu.max": "300000 100000"}, 3),  # moved out of its namespace
        (V2.format(top="/"), "0::/a", {"a/cpu.max": "max 100000"}, 8),
        (V2.format(top="/"), "0::/a", {"a/cpu.max": "9900000 100000"}, 8),  # more than there are
        (V2.format(top="/"), "0::/a", {}, 8),
        (V2.format(top="/"), "0::/a", {"a/cpu.max": ""}, 8),
        (V1.format(top="/"), "4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "250000", **PERIOD}, 3),
        (V1.format(top="/"), "4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "-1", **PERIOD}, 8),
        (V1.format(top="/"), "4:cpuset:/a", {"cpu/a/cpu.cfs_quota_us": "250000", **PERIOD}, 8),  # not of this process
        (
            V1.format(top="/") + "\n" + V2.format(top="/"),
            "0::/\n4:cpu:/a",
            {"cpu/a/cpu.cfs_quota_us": "50000", **PERIOD},
            1,
        ),
    ],
)
def test_quotas_limit_the_processors(
    mount: str, group: str, files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    assert processors(tmp_path / "no Linux") == 8
    proc = {"proc/self/cgroup": group, "proc/self/mountinfo": "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mount}
    for name, text in (proc | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n" * bool(text))
    assert processors(tmp_path) == expected


@pytest.mark.parametrize("value, threads", [("3", 3), (" 5,2", 5), ("0", 8), ("many", 8), ("", 8)])
def test_a_users_threads_win(value: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "processors", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert openmp_threads() == threads


AFFINITY = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import faiss, torch
from cai_pyserini.core.processes import processors
from cai_pyserini.indexes import jvm
java = jvm.java_class("java.lang.Runtime").getRuntime().availableProcessors()
print(processors(), torch.get_num_threads(), faiss.omp_get_max_threads(), java)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux limits processors")
def test_nothing_uses_more_processors_than_it_may() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    ran = subprocess.run([sys.executable, "-c", AFFINITY], capture_output=True, text=True, env=environment)
    assert ran.stdout == "1 1 1 1\n", ran.stderr


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
