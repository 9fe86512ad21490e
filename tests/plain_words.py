"""Finds wording that an English-speaking engineer has to read twice.

`python -m tests.plain_words [FILE ...]` prints each match; without files it prints the number of matches per file.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

START = r"(?:^|(?<=[.;:!(]\s))"
PATTERNS = {
    "a pronoun instead of an actor": r"\b(?:nobody|somebody|whoever|whosoever|anybody|everybody)\b",
    "a clause instead of a subject": START + r"(?:Who|What|Whose|Whom|Where(?:of|upon)) (?!(?:is|are|was|does|do|to|if|happens|about)\b[^.]*\?)[^.?\n]{3,}?(?:\.|$)",
    "a headless 'who'": r"\b(?:of|to|by|for|from|with|than|tells?|and|or|but|as|if) who\b",
    "inverted order": START + r"(?:Is|Are|Has|Have|Was|Were|Does|Do|Can|May) (?:a|an|the|it|there|this|one|no)\b[^?.]*?,[^?]*?\.",
    "'so does'": r"(?<!and )\bso (?:does|do|is|are|has|have|may|can|did|will) (?!that\b|far\b|long\b|much\b|many\b|on\b)\w+",
    "a passive of tell, hear, have, take": r"\b(?:is|are|was|were|be|been|being) (?:told|heard|had|there\b(?! (?:is|are))|taken for|looked at|looked into|gone on)\b",
    "an abstract verb": r"\b(?:look(?:s|ed|ing)? again|look(?:s|ed|ing)? at|go(?:es|ing)? on|went on|come(?:s)? to be|(?:becomes?|became|become) of|com(?:e|es|ing) to light)\b",
    "stand for be": r"\bstands? (?:in|at|beside|here|there|with|below|above|for itself|alike|on)\b",
    "an odd phrase": r"\b(?:passed over|passes over|for ever|for long|out of service|anew|in vain|be content|at hand|under way|let go of|as it were|by itself and)\b",
    "house jargon": r"\b(?:letters?(?! of)|rooms?|the house|the shell|a shell|planted|twins?)\b",
    "otherwise": r"(?:^|(?<=[.;:,]\s))[Ee]lse\b(?! (?:if|clause|branch))",
    "but for": r"\bbut for\b|\bnothing but\b|\bnot but\b",
    "dangling 'others'": r"\b(?:are|is) others?\b|\bas others do\b",
    "verbless": r"(?:^|(?<=[.]\s))(?:And|But|Or) (?:longer|not|how|where|what|who|that)\b",
}
COMPILED = {name: re.compile(pattern, re.MULTILINE) for name, pattern in PATTERNS.items()}
WELL_SAID = re.compile(r"[Dd]ead[- ]letters?|from the shell|shell scripts?|capital letters?|lower-case letters?|letters? (?:and|or) digits|digits? (?:and|or) letters?|[Dd]igital twin")


def prose_of(markdown: str) -> str:
    """The text of a page without headings, code blocks, inline code, links' targets; line breaks inside paragraphs are spaces."""
    text = re.sub(r"^```.*?^```\s*?$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ {4,}(?![-*|]).*$", "", text, flags=re.MULTILINE)
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


def _print(paths: Iterable[Path], *, each: bool) -> None:
    for path in paths:
        prose = prose_of(path.read_text())
        found = list(unclear(prose))
        print(f"{len(found):5} {len(prose.split()):6} words  {path}")
        if each:
            for name, words in found:
                print(f"      {name}: ...{words}...")


if __name__ == "__main__":
    named = [Path(name) for name in sys.argv[1:]]
    _print(named or [*sorted(Path().glob("*.md")), *sorted(Path("docs").glob("*.md")), *sorted(Path("bench").glob("*.md"))], each=bool(named))
