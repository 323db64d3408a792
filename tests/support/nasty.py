"""Strings that break tokenizers, made by the thousand."""

import random

ALPHABETS = {
    "latin": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "accents": "éÉüÜñøßłŁıİǅſﬁ",
    "combining": "a\u0301e\u0308o\u0323\u0301\u0300\u0327\u0345x",
    "cjk": "中文字符漢字日本語かなカナ한국어𠀀𪚥",
    "emoji": "😀👩\u200d👩\u200d👧🏳\ufe0f\u200d🌈☺️🇩🇪",
    "controls": "\x00\x01\x07\x0b\x0c\x1c\x1d\x1e\x1f\x7f\x85\xad\u200b\u200e\u2028\u2029\ufeff\ufffd\ue000",
    "spaces": " \t\n\r\xa0\u1680\u2003\u202f\u205f\u3000",
    "punctuation": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»–—…¿·§¶、。「」",
    "digits": "0123456789٣४५②½",
    "scripts": "русскийЁΣςσעבריתالعربيةहिन्दीไทยქართული",
    "symbols": "€£¥©®™°±×÷∑√∞≈≠←→█\u0fd5\U0001d400",
}
PHRASES = (
    "[SEP]",
    "[MASK]",
    "[CLS]",
    "[UNK]",
    "[PAD]",
    "##ing",
    "don't",
    "U.S.A.",
    "co-op",
    "x" * 99,
    "x" * 100,
    "y" * 101,
    "",
)


def nasty(count: int, seed: int = 0) -> list[str]:
    """`count` strings of mixed alphabets, long words, spelled-out special pieces and every kind of space."""
    draw = random.Random(seed)
    return [_one(draw) for _ in range(count)]


def _one(draw: random.Random) -> str:
    alphabets = [*draw.sample(list(ALPHABETS.values()), draw.randint(1, 4)), ALPHABETS["latin"], " "]
    parts = []
    for _ in range(draw.randint(0, 12)):
        if draw.random() < 0.1:
            parts.append(draw.choice(PHRASES))
        elif draw.random() < 0.05:
            parts.append(chr(draw.choice([draw.randrange(0x20, 0xD800), draw.randrange(0xE000, 0x110000)])))
        else:
            alphabet = draw.choice(alphabets)
            parts.append("".join(draw.choice(alphabet) for _ in range(draw.randint(1, 8))))
        parts.append(draw.choice(("", " ", " ", draw.choice(ALPHABETS["spaces"]))))
    return "".join(parts)
