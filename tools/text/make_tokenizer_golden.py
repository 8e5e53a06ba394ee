#!/usr/bin/env python3
"""Writes tests/text/data/tokenizer_golden.jsonl.xz: texts with the ids that the reference library gives them.

    pip install tokenizers==0.23.3 unicodedata2==16.0.0
    python tools/text/make_tokenizer_golden.py

One JSON object a line:
    "t" the text, or "h" its bytes in hex when they are not valid UTF-8 (the ids are those of the replaced text);
    "n" NFC of the text (after replacement), when it differs: what decoding the ids must give;
    "q" ids with the Qwen vocabulary, "m" ids with the tiny one; added tokens are matched;
    "u", "v" the same with no added token matched, when they differ.
Texts whose NFC differs between the library (old combining classes) and Unicode 16 are left out; the count is printed.
"""
import json
import lzma
import random
import string
from pathlib import Path

import unicodedata2 as ucd
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "text" / "data"

assert ucd.unidata_version == "16.0.0"


def load(text):
    with_added = Tokenizer.from_str(text)
    spec = json.loads(text)
    spec["added_tokens"] = []
    return with_added, Tokenizer.from_str(json.dumps(spec))


QWEN = load(lzma.open(DATA / "qwen_tokenizer" / "tokenizer.json.xz", "rt", encoding="utf-8").read())
TINY = load((ROOT / "models" / "tiny" / "tokenizer.json").read_text(encoding="utf-8"))
ADDED = [t.content for t in TINY[0].get_added_tokens_decoder().values()]

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ASSIGNED = [c for c in CODE_POINTS if ucd.category(chr(c)) not in ("Cn", "Co")]
BY_CATEGORY = {}
for c in ASSIGNED:
    BY_CATEGORY.setdefault(ucd.category(chr(c)), []).append(c)
DIGITS = BY_CATEGORY["Nd"] + BY_CATEGORY["Nl"] + BY_CATEGORY["No"]
MARKS = BY_CATEGORY["Mn"] + BY_CATEGORY["Mc"] + BY_CATEGORY["Me"]
SPACES = [chr(c) for c in (*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
                           0x205F, 0x3000)]
NEAR_SPACES = ["\u200b", "\u180e", "\ufeff", "\x1c", "\x1d", "\x1e", "\x1f", "\u2060"]
DECOMPOSING = [chr(c) for c in CODE_POINTS if ucd.normalize("NFD", chr(c)) != chr(c) and not 0xAC00 <= c < 0xD7A4]
BLOCKS = {
    "latin": [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x1E00, 0x1EFF)], "greek": [(0x370, 0x3FF), (0x1F00, 0x1FFF)],
    "cyrillic": [(0x400, 0x52F)], "armenian": [(0x531, 0x58A)], "hebrew": [(0x591, 0x5F4)], "arabic": [(0x600, 0x6FF)],
    "syriac": [(0x700, 0x74F)], "thaana": [(0x780, 0x7B1)], "devanagari": [(0x900, 0x97F)], "bengali": [(0x980, 0x9FB)],
    "tamil": [(0xB82, 0xBFA)], "telugu": [(0xC00, 0xC7F)], "sinhala": [(0xD81, 0xDF4)], "thai": [(0xE01, 0xE5B)],
    "lao": [(0xE81, 0xEDF)], "tibetan": [(0xF00, 0xFDA)], "burmese": [(0x1000, 0x109F)], "georgian": [(0x10A0, 0x10FF)],
    "jamo": [(0x1100, 0x11FF)], "ethiopic": [(0x1200, 0x137C)], "khmer": [(0x1780, 0x17F9)],
    "mongolian": [(0x1800, 0x18AA)], "kana": [(0x3041, 0x30FF)], "cjk": [(0x4E00, 0x9FFF)],
    "cjk_b": [(0x20000, 0x2A6DF)], "hangul": [(0xAC00, 0xD7A3)], "punctuation": [(0x2010, 0x205E), (0x3001, 0x303F)],
    "symbols": [(0x2190, 0x27BF)], "letterlike": [(0x2100, 0x214F)], "full_width": [(0xFF01, 0xFFEE)],
    "maths": [(0x1D400, 0x1D7FF)], "gothic": [(0x10330, 0x1034A)], "cuneiform": [(0x12000, 0x12399)],
    "adlam": [(0x1E900, 0x1E95F)], "compatibility": [(0xF900, 0xFAD9), (0x2F800, 0x2FA1D)],
}
BLOCK_CHARS = {name: [chr(c) for first, last in spans for c in range(first, last + 1) if ucd.category(chr(c)) != "Cn"]
               for name, spans in BLOCKS.items()}
EMOJI = ["😀", "👍🏽", "👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵", "1️⃣", "#️⃣", "❤️", "❤️‍🔥", "🦙", "🫨", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "☺", "✌🏿", "🤷‍♀️"]
WORDS = ("the of and to in is that it was for on are as with his they be at one have this from or had by hot but some what "
         "there we can out other were all your when up use word how said an each she which do their time if will way about "
         "many then them would write like so these her long make thing see him two has look more day could go come did my "
         "sound no most number who over know water than call first people may down side been now find any new work part "
         "international unbelievable tokenizer internationalization Straße naïve café façade coöperate Ångström").split()
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'Re", "'rE", "'ve", "'VE", "'m", "'M", "'ll", "'LL", "'lL", "'d",
                "'D", "'ſ", "'\u017f", "'\u212a", "'r", "'v", "'l", "'", "''", "'st", "'ſt", "’s", "’t", "'ß", "'ŉ", "'ﬅ",
                "'s\u0301", "'t's", "'re've", "''s", "'llx", "'dD", "'ᵐ", "'ſſ"]
CODE = ["def f(x):\n    return x + 1\n", "if (a != b && c) {\n\t\treturn;\n}\n", "for i in range(10):\n\tprint(i)\n\n\n",
        "SELECT * FROM t WHERE x='1';--", "<div class=\"a b\">&nbsp;</div>\r\n", "#include <vector>\r\n\r\nint main() {}",
        "x = {'a': [1, 2.5e-3], \"b\": None}", "curl -s https://example.org/a?b=c&d=%20 | jq '.[]'", "a->b::c<d>(*e)",
        "///////////////", "==========", "\t\t\tif x:\n\t\t\t\tpass", "const s = `${a} ${b}`;", "0xDEADBEEF 0b1010 1_000_000",
        "\\begin{equation}\\frac{a}{b}\\end{equation}", "$x^2_{i,j}$", "λx.x", "std::unordered_map<std::string, int> m;"]
NUMBERS = ["3.14159", "1e-9", "0x1F", "1,234,567.89", "2024-01-31T23:59:59Z", "007", "½", "²³", "Ⅷ", "①②③", "٣٤٥", "१२३",
           "๑๒๓", "１２３", "𝟘𝟙𝟚", "100%", "$5.00", "-17", "+1", "1/2", "१.५", "〇一二三", "2²", "10⁻⁹"]


def chars(rng, pool, low, high):
    return "".join(rng.choice(pool) for _ in range(rng.randint(low, high)))


def script(rng):
    name = rng.choice(list(BLOCKS))
    pool = BLOCK_CHARS[name]
    return "".join(chars(rng, pool, 1, 6) + rng.choice(["", " ", " ", "  ", "\n", "'", ".", "1", "-"])
                   for _ in range(rng.randint(1, 4)))


def any_assigned(rng):
    return "".join(chr(rng.choice(ASSIGNED)) for _ in range(rng.randint(1, 8)))


def any_category(rng):
    names = list(BY_CATEGORY)
    return "".join(rng.choice([chr(rng.choice(BY_CATEGORY[rng.choice(names)])), rng.choice("aZ1 .'\n")])
                   for _ in range(rng.randint(2, 10)))


def unassigned(rng):
    return "".join(rng.choice([chr(rng.choice(CODE_POINTS)), rng.choice("ab 1.\n")]) for _ in range(rng.randint(1, 6)))


def combining(rng):
    base = lambda: rng.choice(["a", "e", "o", "U", "A", " ", "1", ".", "\n", "<", "가", "क", "ש", "ا", rng.choice(DECOMPOSING)])
    marks = lambda: "".join(rng.choice([chr(rng.randint(0x300, 0x36F)), chr(rng.choice(MARKS))])
                            for _ in range(rng.randint(0, 4)))
    return "".join(base() + marks() for _ in range(rng.randint(1, 5)))


def decomposed(rng):
    pool = BLOCK_CHARS[rng.choice(["latin", "greek", "hangul", "cyrillic", "kana", "devanagari", "hebrew", "arabic",
                                   "compatibility", "letterlike", "tibetan"])]
    text = chars(rng, pool, 1, 8)
    return ucd.normalize("NFD", text) if rng.random() < 0.7 else text


def jamo(rng):
    return "".join(rng.choice([chr(rng.randint(0x1100, 0x1112)), chr(rng.randint(0x1161, 0x1175)),
                               chr(rng.randint(0x11A8, 0x11C2)), chr(rng.randint(0xAC00, 0xD7A3)), "가", " "])
                   for _ in range(rng.randint(2, 10)))


def whitespace(rng):
    pool = rng.choice([SPACES, [" ", "\n", "\r", "\t"], [" ", "\n"], SPACES + NEAR_SPACES])
    return "".join(chars(rng, pool, 0, 5) + rng.choice(["", "a", "Z", "1", ".", "é", "你", "'s", "\u0301", "<", "("])
                   for _ in range(rng.randint(1, 5)))


def controls(rng):
    return "".join(rng.choice([chr(rng.randint(0, 0x1F)), chr(rng.randint(0x7F, 0xA0)), "\x00", "a", " ", "7", rng.choice(NEAR_SPACES)])
                   for _ in range(rng.randint(1, 8)))


def contraction(rng):
    return "".join(rng.choice(["", " ", "I", "we", "1", ".", "é", "你", "\n", "don", "K"]) + rng.choice(CONTRACTIONS)
                   + rng.choice(["", " ", "x", "1", "!", "\n", "é"]) for _ in range(rng.randint(1, 4)))


def numbers(rng):
    return "".join(rng.choice([rng.choice(NUMBERS), chr(rng.choice(DIGITS)), str(rng.randint(0, 10**rng.randint(1, 12)))])
                   + rng.choice(["", " ", "a", ",", "\n"]) for _ in range(rng.randint(1, 5)))


def emoji(rng):
    return "".join(rng.choice([rng.choice(EMOJI), chr(rng.randint(0x1F300, 0x1FAFF)), rng.choice("\u200d\ufe0f a!")])
                   for _ in range(rng.randint(1, 5)))


def control_tokens(rng):
    whole = lambda: rng.choice(ADDED)
    part = lambda: (lambda s: s[:rng.randint(1, len(s))] if rng.random() < 0.5 else s[rng.randint(0, len(s) - 1):])(whole())
    return "".join(rng.choice([whole(), whole(), part(), rng.choice(["<", "|", ">", "<|", "|>", "</", "\u0338", "é", "e\u0301", " ", "\n", "a", "user\n"]),
                               whole().upper(), whole().replace("|", "｜")]) for _ in range(rng.randint(1, 6)))


def english(rng):
    words = [rng.choice(WORDS) for _ in range(rng.randint(2, 14))]
    return "".join(rng.choice([w, w, w, w.capitalize(), w.upper()]) + rng.choice([" "] * 8 + [", ", ". ", "! ", "\n", "-", " (", ") ", "'s ", "?\n\n", "_"])
                   for w in words)


def code(rng):
    return "".join(rng.choice(CODE) + rng.choice(["", "\n", " ", "\r\n", "    "]) for _ in range(rng.randint(1, 2)))


def punctuation(rng):
    pool = rng.choice([string.punctuation, string.punctuation + " \n", "./-=_*#", BLOCK_CHARS["punctuation"]])
    return "".join(chars(rng, pool, 1, 8) + rng.choice(["", "a", " ", "\n", "\r\n\r\n", " b", "1"]) for _ in range(rng.randint(1, 4)))


def runs(rng):
    unit = rng.choice([*"Zaz.- 7=_\n\t\r#<|", "你", "á", "a\u0301", "\u0301", "😀", "ab", "\r\n", " \n", "가", "\u3000", "1.", "Ω", "ä\u0323"])
    return unit * rng.choice([1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 50, 63, 64, 65, 100, 129]) + rng.choice(["", "a", " ", "\n"])


def long_words(rng):
    pool = rng.choice([string.ascii_lowercase, string.ascii_letters, "ACGT", "01", "etaoins", BLOCK_CHARS["cyrillic"],
                       BLOCK_CHARS["cjk"][:3000], BLOCK_CHARS["hangul"], "the"])
    return chars(rng, pool, 30, 90)


def invalid(rng):
    valid = rng.choice([english, script, emoji, whitespace])(rng).encode()
    data = bytearray(valid[:24])
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(data))
        kind = rng.randrange(5)
        if kind == 0:
            data[at:at] = bytes([rng.randint(0x80, 0xFF)])
        elif kind == 1:
            data[at:at] = rng.choice([b"\xed\xa0\x80", b"\xc0\xaf", b"\xe0\x80\x80", b"\xf4\x90\x80\x80", b"\xf0\x80\x80",
                                      b"\xff\xfe", b"\xf5\x80", b"\xc3", b"\xe4\xbd", b"\xf0\x9f\x98", b"\xf0\x9f", b"\xed\x9f"])
        elif kind == 2 and at < len(data):
            data[at] = rng.randint(0, 255)
        elif kind == 3 and at < len(data):
            del data[at]
        else:
            data = data[:at] or bytearray(b"\x80")
    return bytes(data)


KINDS = [(script, 2200), (any_assigned, 900), (any_category, 900), (unassigned, 500), (combining, 900), (decomposed, 900),
         (jamo, 300), (whitespace, 1100), (controls, 400), (contraction, 900), (numbers, 500), (emoji, 500),
         (control_tokens, 1000), (english, 700), (code, 120), (punctuation, 500), (runs, 350), (long_words, 160),
         (invalid, 900)]


def main():
    rng = random.Random(16)
    normalizer = QWEN[0].normalizer
    seen = {b""}
    lines = ['{"t":"","q":[],"m":[]}']
    skipped = 0
    for make, count in KINDS:
        done = 0
        while done < count:
            made = make(rng)
            raw = made if isinstance(made, bytes) else made.encode()
            if raw in seen:
                if make not in (runs, code):
                    continue
                done += 1
                continue
            seen.add(raw)
            text = raw.decode("utf-8", "replace")
            nfc = normalizer.normalize_str(text)
            if nfc != ucd.normalize("NFC", text):
                skipped += 1
                continue
            done += 1
            row = {"t": text} if text.encode() == raw else {"h": raw.hex()}
            ids = [t.encode(text).ids for pair in (QWEN, TINY) for t in pair]
            # Text between added tokens is normalised part by part, so a mark after a token stays apart.
            decoded = [t.decode(i, skip_special_tokens=False) for t, i in zip((*QWEN, *TINY), ids)]
            assert decoded[1] == decoded[3] == nfc, (text, decoded)
            if nfc != text:
                row["n"] = nfc
            if decoded[0] != nfc:
                row["nq"] = decoded[0]
            if decoded[2] != nfc:
                row["nm"] = decoded[2]
            row["q"], row["m"] = ids[0], ids[2]
            if ids[1] != ids[0]:
                row["u"] = ids[1]
            if ids[3] != ids[2]:
                row["v"] = ids[3]
            lines.append(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
    path = DATA / "tokenizer_golden.jsonl.xz"
    with lzma.open(path, "wb", preset=9 | lzma.PRESET_EXTREME) as out:
        out.write(("\n".join(lines) + "\n").encode())
    print(f"{len(lines)} texts, {path.stat().st_size} bytes, {skipped} left out")


main()
