"""A collection of 300 documents with metadata, and filters with what they mean in Python."""

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

KINDS = {"year": "number", "journal": "string", "published": "date", "authors": "list", "impact": "number"}
JOURNALS = ["BMJ", 'The "Lancet"', "AND", "Größe\\Maß"]
AUTHORS = ["Doe", "Roe, R.", "<b>Poe</b>", "血"]
WORDS = ["fever", "cough", "infection", "bladder", "kidney", "insulin", "glucose", "sleep", "blood", "pressure"]
WORDS += ["cancer", "colon", "malaria", "zinc", "cold", "heart", "runner", "cereal", "rat", "trial", "risk", "dose"]
WORDS += ["child"]
QUERIES = ["bladder infection", "the risk of cancer", "sleep and blood pressure"]


@cache
def metadata() -> dict[str, dict[str, Any]]:
    """Document id -> its metadata; every tenth has none."""
    draw, found = random.Random(0), {}
    for number in range(300):
        year = draw.randint(1990, 2024)
        found[f"d{number}"] = {
            "year": year,
            "journal": draw.choice(JOURNALS),
            "published": f"{year}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}",
            "impact": round(10 * draw.random(), 2),
        } | ({"authors": authors} if (authors := draw.sample(AUTHORS, draw.randint(0, 3))) else {})
    return {id: of if number % 10 else {} for number, (id, of) in enumerate(found.items())}


@cache
def texts() -> dict[str, str]:
    """Document id -> its text."""
    draw = random.Random(1)
    return {id: " ".join(draw.choices(WORDS, k=12)) for id in metadata()}


def write_collection(folder: Path) -> Path:
    """Write the collection and its YAML file, whose path is returned."""
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for (id, of), text in zip(metadata().items(), texts().values(), strict=True):
            file.write(json.dumps({"_id": id, "title": f"Title {id}", "text": text, "metadata": of}) + "\n")
    (folder / "papers.yaml").write_text(f"source: {folder}\nmetadata: {json.dumps(KINDS)}\n")
    return folder / "papers.yaml"


FILTERS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "year>=2010": lambda of: of.get("year", 0) >= 2010,
    "journal:BMJ AND impact<2.5": lambda of: of.get("journal") == "BMJ" and of["impact"] < 2.5,
    'journal=("The \\"Lancet\\"", "Größe\\\\Maß") AND NOT authors:(Doe, "Roe, R.")': lambda of: (
        of.get("journal") in JOURNALS[1::2] and not {"Doe", "Roe, R."} & set(of.get("authors", ()))
    ),
    "published<1992-06 OR published:2020-02 OR published>2023": lambda of: (
        bool(of) and (of["published"] < "1992-06" or of["published"][:7] == "2020-02" or of["published"][:4] > "2023")
    ),
    "NOT year>=0": lambda of: not of,
    "NOT (journal:BMJ OR year<2000)": lambda of: not (of.get("journal") == "BMJ" or of.get("year", 2000) < 2000),
    r"journal:(?he*Lan\cet?, Gr*\\M*) OR journal:*N? AND NOT journal:**\*": lambda of: (
        of.get("journal") in JOURNALS[1:]
    ),
    "year:1066": lambda of: False,
    "year:()": lambda of: False,
    "NOT journal:()": lambda of: True,
}
