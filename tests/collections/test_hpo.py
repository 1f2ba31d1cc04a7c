"""The demo collection."""

import pytest

from cai_pyserini.collections.contract import Document
from cai_pyserini.collections.hpo import Hpo


@pytest.fixture(scope="module")
def hpo() -> Hpo:
    return Hpo()


def test_the_demo_has_the_documented_size(hpo: Hpo) -> None:
    counts = hpo.check("test")
    assert (counts["documents"], counts["queries"]) == (16449, 5828)
    assert hpo.size == 16449


def test_a_demo_document_and_its_queries(hpo: Hpo) -> None:
    infections = "Recurrent urinary tract infections Repeated infections of the urinary tract."
    documents = {document.id: document for document in hpo.documents()}
    assert documents["HP:0000010"] == Document("HP:0000010", infections)
    assert 'giving the chest ("pectus") a caved-in' in documents["HP:0000767"].contents  # \" in the file
    qrels = hpo.qrels("test")
    relevant = {text for id, text in hpo.topics("test").items() if "HP:0000010" in qrels[id]}
    assert relevant == {
        "Frequent urinary tract infections",
        "Repeated bladder infections",
        "Repeated urinary tract infections",
        "Urinary tract infections",
        "Urinary tract infections, recurrent",
    }


def test_no_demo_query_is_a_name(hpo: Hpo) -> None:
    names = {record.title.casefold() for record in hpo.records()}
    assert len(names) > 16000
    assert not names & {topic.casefold() for topic in hpo.topics("test").values()}
