"""Finds wording that an English-speaking engineer has to read twice.

`python -m tests.harness.plain_words [FILE ...]` prints each match in these pages; without files, the matches per page.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

SENTENCE = r"(?:^|(?<=[.;:!(]\s))"
"""Where a sentence or a clause begins."""

PATTERNS = {
    "a pronoun for an actor": r"(?i:\b(?:nobody|somebody|whoever|anybody|everybody)\b)",
    "a clause for a subject": SENTENCE
    + r"(?:Who|What|Whose|Whom) (?!(?:is|are|was|does|do|to|if|happens|about)\b[^.]*\?)[^.?\n]{3,}?(?:\.|$)",
    "'who' without a noun": r"\b(?:of|to|by|for|from|with|than|tells?|and|or|but|as|if) who\b",
    "a question's order": SENTENCE
    + r"(?:Is|Are|Has|Have|Was|Were|Does|Do|Can|May) (?:an?|the|it|there|this|one|no)\b[^?.]*?,[^?]*?\.",
    "'so does'": r"(?<!and )\bso (?:does|do|is|are|has|have|may|can|did|will) "
    r"(?!that\b|far\b|long\b|much\b|many\b|on\b)\w+",
    "be told, be there": r"\b(?:is|are|was|were|be|been|being) "
    r"(?:told|heard|had|there\b(?! (?:is|are))|taken for|looked at|looked into|gone on)\b",
    "an abstract verb": r"\b(?:look(?:s|ed|ing)? (?:again|at)|go(?:es|ing)? on|went on|comes? to be|bec[ao]mes? of"
    r"|com(?:e|es|ing) to light)\b",
    "'stand' for 'be'": r"\bstands? (?:in|at|beside|here|there|with|below|above|for itself|alike|on)\b",
    "an odd phrase": r"\b(?i:pass(?:ed|es) over|for ever|for long|out of service|anew|in vain|be content|at hand"
    r"|under way|let go of|as it were)\b",
    "a word of this house": r"\b(?:letters?(?!, digits)|rooms|the house|the shell|a shell|planted|twins?)\b",
    "'else' as a conjunction": r"(?:^|(?<=[.;:,]\s))[Ee]lse\b(?! (?:if|clause|branch))",
    "'but for'": r"\bbut for\b|\bnothing but\b|\bnot but\b",
    "'others' without a noun": r"\b(?:are|is) others?\b|\bas others do\b",
    "no verb": r"(?:^|(?<=[.]\s))(?:And|But|Or) (?:longer|not|how|where|what|who|that)\b",
}
COMPILED = {name: re.compile(pattern, re.MULTILINE) for name, pattern in PATTERNS.items()}
WELL_SAID = re.compile(r"[Dd]ead[- ]letters?|from the shell|shell scripts?|(?:capital|lower-case|of) letters?\b")


def prose_of(page: str) -> str:
    """The sentences of a Markdown page, a paragraph a line: without headings, code, marks and targets of links."""
    text = re.sub(r"^```.*?^```\s*?$", "", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^#.*$|^ {4,}(?![-*|]).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "X", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"[*_\[\]]", "", text)
    text = re.sub(r"\n(?![\n|#\-]|\d+\.)[ ]*", " ", text)
    return re.sub(r"^[#\-|>\d. ]+", "", text, flags=re.MULTILINE)


def unclear(prose: str) -> Iterator[tuple[str, str]]:
    """(which pattern, the words around it) for each match."""
    prose = WELL_SAID.sub("X", prose)
    for name, pattern in COMPILED.items():
        for match in pattern.finditer(prose):
            yield name, prose[max(0, match.start() - 50) : match.end() + 40].replace("\n", " / ")


def print_matches(names: list[str]) -> None:
    for path in map(Path, names) if names else sorted([*Path().glob("*.md"), *Path("docs").rglob("*.md")]):
        prose = prose_of(path.read_text())
        found = list(unclear(prose))
        print(f"{len(found):5} of {len(prose.split()):6} words  {path}")
        for name, words in found if names else ():
            print(f"      {name}: ...{words}...")


if __name__ == "__main__":
    print_matches(sys.argv[1:])
