"""Splits a document into sentences by rules: at the end of a line, and at a full stop, ! or ? where a new one can begin.

Next-sentence pairs need sentences that are nearly always right, from gigabytes of text. docs/why/sentences.md has the
agreement with hand-labelled boundaries, and the speed.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

# A terminator with closing quotes and brackets, then white space and a possible start of a sentence; or a terminator that
# always ends one, from Chinese to Armenian.
_CANDIDATE = re.compile(
    r"""[.!?…](?<![.!?…]{2})[.!?…]*["'”’»)\]]*[ \t\u00a0]+(?=["'“‘«(\[—-]*[^\W_a-z])|[。！？।॥؟۔։።｡]+[!?]*[」』”’）»]*"""
)
# Never end a sentence: a name or number follows.
_TITLES = frozenset(
    "mr mrs ms messrs mme mlle dr prof rev fr hon st ste sr sra gen col lt maj capt cpt cmdr adm sgt cpl pvt gov sen rep "
    "pres supt det insp vs v cf viz al approx ca c fl b d r p pp vol vols no nos nr fig figs eq sec ch art op ed eds trans "
    "dept univ mt ft hr mgr msgr e.g i.e jan feb mar apr jun jul aug sep sept oct nov dec".split()
)
# End a sentence only if a word follows that often begins one.
_ABBREVIATIONS = frozenset(
    "etc inc ltd co corp bros jr esq u.s u.k u.n d.c b.c a.d a.m p.m ph.d m.d b.a m.a u.s.a u.s.s.r m.p".split()
)
_STARTERS = frozenset(
    "a after all although an and as at because before but by during each for from he her his how however i if in it its "
    "later many most no not of on one our she since so some such that the their then there these they this those though to "
    "under until we what when where while who why with you your".split()
)
_LONG = 2000  # characters; a longer sentence is cut
_LONGEST = 64  # characters of a word that are examined before a full stop, or kept whole at a cut
_PARTS = re.compile(rf"\S.{{0,{_LONG}}}\S{{0,{_LONGEST}}}")
_NEXT_WORD = re.compile(r"\W*(\w+)")


def split_sentences(document: str) -> list[str]:
    """Returns the sentences of a document in order, stripped of surrounding white space."""
    sentences = []
    for line in document.split("\n"):
        bounds = [0, *sentence_ends(line), len(line)]
        sentences += [line[begin:end].strip() for begin, end in pairwise(bounds)]
    return [part for one in sentences if one for part in (_PARTS.findall(one) if len(one) > _LONG else (one,))]


def sentence_ends(line: str) -> Iterator[int]:
    """Yields the offsets at which sentences end inside a line."""
    for match in _CANDIDATE.finditer(line):
        if line[match.start()] != "." or match[0].startswith("..") or _ends_with_stop(line, match):
            yield match.end()


def _ends_with_stop(line: str, match: re.Match[str]) -> bool:
    """Whether a single full stop ends a sentence; else it belongs to the word before it."""
    end, far = match.start(), max(0, match.start() - _LONGEST)
    word = line[max(far, line.rfind(" ", far, end) + 1) : end]
    word = word.rpartition("\t")[2].rpartition("\u00a0")[2].rpartition("—")[2].lstrip("\"'“‘«([-")
    lower = word.lower()
    if lower in _TITLES or (len(word) == 1 and word.isalpha() and word != "I"):
        return False
    if lower in _ABBREVIATIONS or ("." in word and all(len(part) == 1 and part.isalpha() for part in word.split("."))):
        following = _NEXT_WORD.match(line, match.end())
        return following is not None and following[1].lower() in _STARTERS
    return True
