"""What fuzzing has found is read or refused today; `make fuzz` looks for more."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz.readers import CORPUS, TARGETS, attempt, corpus


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    seeds = target.seeds(tmp_path)
    assert all(attempt(target, content, tmp_path) for content in seeds), "a fuzzer must begin at files that are whole"
    for content in corpus(name, tmp_path)[len(seeds) :]:
        attempt(target, content, tmp_path)


def test_the_corpus_has_no_other_folders() -> None:
    assert {path.name for path in CORPUS.glob("*")} <= {*TARGETS, "checkpoint", "state"}
