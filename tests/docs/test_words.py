"""Plain American English in comments, docstrings, messages and pages: words that are not used."""

from __future__ import annotations

import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = ("src", "docs", "benchmarks", "examples", "README.md", "CONTRIBUTING.md", "results/README.md")
FILES = subprocess.run(
    ["git", "ls-files", *PLACES], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()
TEXTS = [name for name in FILES if name.endswith((".py", ".md", ".j2")) and (ROOT / name).exists()]

BRITISH = (
    "artefact behaviour catalogue centre colour defence favour fibre flavour grey honour judgement labelled labelling "
    "learnt licence modelled modelling neighbour programme skilful towards travelled whilst"
)
STEMS = (
    "categor character custom emphas factor final general harmon initial local maxim memor minim normal optim organ "
    "parametr penal quant random recogn regular serial special standard summar symbol synchron token util vector visual"
)
ODD = (
    "of the way",
    "guards main",
    "in a hurry",
    "half-hour",
    "voices",
    "rented",
    "when asked",
    r"(?:once|one|two|three|four) (?:(?!on|of|in|at|for|to|with|by|as|from)\w+ )?an? "
    r"(?:batch|image|seed|row|line|sample|class|member|mode|file|step|epoch|group|network|bridge|process|run|head)",
)
ENDINGS = "[iy]s(?:e[ds]?|ers?|ing|ations?)"
WORDS = re.compile(
    rf"\b(?:(?:{BRITISH.replace(' ', '|')})\w*|(?:\w*(?:{STEMS.replace(' ', '|')})|anal){ENDINGS}"
    rf"|{'|'.join(ODD)})\b",
    re.IGNORECASE,
)


def prose(file: Path) -> Iterator[str]:
    """A page, or the comments and strings of a program, without names and titles of works."""
    if file.suffix != ".py":
        yield re.sub(r"`[^`]*`|\[\*[^*]*\*\]", "", file.read_text())
        return
    with file.open("rb") as lines:
        for token in tokenize.tokenize(lines.readline):
            # A string of one word may be the name of something.
            if token.type in (tokenize.COMMENT, tokenize.STRING) and not token.string.strip("\"'").isidentifier():
                yield re.sub(r"`[^`]*`", "", token.string)


def test_words_that_are_not_used() -> None:
    assert WORDS.findall("one label a sample initialises") == ["one label a sample", "initialises"]
    assert WORDS.findall("run it once on a batch; otherwise advise, noise, a color") == []
    texts = {name: " ".join(" ".join(prose(ROOT / name)).split()) for name in TEXTS}
    assert {name: found for name, text in texts.items() if (found := WORDS.findall(text))} == {}
