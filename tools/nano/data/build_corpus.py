#!/usr/bin/env python3
"""Makes the prose corpus from unpacked Debian packages (see the README for their names and licences).

    mkdir raw && cd raw && apt-get download sword-text-web wordnet-base r-cran-janeaustenr
    for deb in *.deb; do dpkg -x "$deb" deb; done
    python3 build_corpus.py --raw raw/deb --gsm8k train.jsonl --out CORPUS

CORPUS gets corpus.jsonl.xz ({"source", "text"} a line), haystack.txt (held out, one sentence a line) and
gsm8k_train.jsonl. The held-out book is in no training document.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import shutil
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.prose import sentences_of  # noqa: E402

HELD_OUT = "northangerabbey"
LICENCES = {
    "austen": "public domain text (R package janeaustenr, MIT)",
    "web": "World English Bible, public domain",
    "wordnet": "WordNet 3.0 licence (permissive)",
}


def plain(text: str) -> str:
    """Typographic quotes and dashes as ASCII; anything else outside ASCII goes."""
    for old, new in (
        ("\u2018", "'"),
        ("\u2019", "'"),
        ("\u201c", '"'),
        ("\u201d", '"'),
        ("\u2014", "--"),
        ("\u2013", "-"),
        ("\u2026", "..."),
        ("\xa0", " "),
    ):
        text = text.replace(old, new)
    return text.encode("ascii", "ignore").decode()


def r_strings(data: bytes) -> list[str]:
    """All strings of one serialised R object: a string is the header 0x..09 of a CHARSXP, a length, and bytes."""
    lines: list[str] = []
    at = 0
    while (at := data.find(b"\x00\x04\x00\x09", at)) >= 0:
        size = struct.unpack(">i", data[at + 4 : at + 8])[0]
        if size < 0 or at + 8 + size > len(data):
            at += 1
            continue
        lines.append(data[at + 8 : at + 8 + size].decode("utf-8", "ignore"))
        at += 8 + size
    return lines


def austen_books(raw: Path) -> list[tuple[str, list[str]]]:
    """(title, paragraphs) of the six novels; the database is a row of objects: length, type letter, zlib stream."""
    data = (raw / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    books = []
    at = 0
    while at + 4 < len(data):
        start = at + 5 if data[at + 4 : at + 5] == b"2" else at + 4
        try:
            stream = zlib.decompressobj()
            body = stream.decompress(data[start:])
        except zlib.error:
            at += 1
            continue
        at = len(data) - len(stream.unused_data)
        lines = [plain(line).strip() for line in r_strings(body)]
        if len(lines) < 1000:
            continue
        paragraphs = [" ".join(block.split("\n")) for block in re.split(r"\n\n+", "\n".join(lines))]
        title = re.sub(r"[^a-z]", "", paragraphs[0].lower())
        books.append((title, [p.replace("_", "") for p in paragraphs if len(p) > 60 and not p.startswith("CHAPTER")]))
    return books


def web_chapters(raw: Path) -> Iterator[str]:
    """Blocks of the SWORD module: index entries (offset, compressed size, size), zlib streams of OSIS mark-up."""
    folder = raw / "usr/share/sword/modules/texts/ztext/engWEB2015eb"
    for part in ("ot", "nt"):
        index, data = (folder / f"{part}.bzs").read_bytes(), (folder / f"{part}.bzz").read_bytes()
        for offset, size, _ in struct.iter_unpack("<III", index):
            text = zlib.decompress(data[offset : offset + size]).decode("utf-8", "ignore")
            text = re.sub(r"<note\b.*?</note>|<title\b.*?</title>", "", text, flags=re.S)
            text = re.sub(r"</(p|l|lg|verse)>|<(milestone|div|chapter|lb)\b[^>]*>", "\n", text)
            text = plain(re.sub(r"<[^>]*>", "", text).replace("&amp;", "&").replace("&lt;", "<"))
            text = re.sub(r"[ \t]+", " ", text)
            lines = [line.strip() for line in text.split("\n") if len(line.strip()) > 2]
            # Verses are joined to paragraphs of about 600 characters, so that a document reads on.
            paragraph = ""
            paragraphs = []
            for line in lines:
                paragraph = f"{paragraph} {line}".strip()
                if len(paragraph) > 600 and paragraph[-1] in ".!?\"'":
                    paragraphs.append(paragraph)
                    paragraph = ""
            yield "\n".join([*paragraphs, paragraph]).strip()


def wordnet_glosses(raw: Path) -> Iterator[str]:
    """ "word: gloss" lines, 40 a document, in file order (neighbours are related)."""
    lines: list[str] = []
    for part in ("noun", "verb", "adj", "adv"):
        for line in (raw / f"usr/share/wordnet/data.{part}").read_text(encoding="latin-1").splitlines():
            if line.startswith("  ") or " | " not in line:
                continue
            head, gloss = line.split(" | ", 1)
            word = re.sub(r"\(.*\)", "", head.split()[4]).replace("_", " ")
            # Latin names of species and people with dates make up half of the nouns and teach little.
            if word != word.lower() or not word.replace(" ", "").isalpha() or len(gloss) > 250:
                continue
            if re.search(r"\b(slur|offensive|disparag|vulgar|obscene|sexual|derogatory)", gloss):
                continue
            lines.append(plain(f"{word}: {gloss.strip()}"))
    for at in range(0, len(lines), 40):
        yield "\n".join(lines[at : at + 40])


def chunks(paragraphs: list[str], chars: int = 12000) -> Iterator[str]:
    chunk: list[str] = []
    for paragraph in paragraphs:
        chunk.append(paragraph)
        if sum(map(len, chunk)) > chars:
            yield "\n".join(chunk)
            chunk = []
    if chunk:
        yield "\n".join(chunk)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, required=True, help="folder that the packages were unpacked into")
    parser.add_argument("--gsm8k", type=Path, required=True, help="train.jsonl of GSM8K")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    documents: list[tuple[str, str]] = []
    haystack: list[str] = []
    for title, paragraphs in austen_books(options.raw):
        print(title[:40], len(paragraphs), "paragraphs")
        if title.startswith(HELD_OUT):
            haystack = [s for p in paragraphs for s in sentences_of(p) if 15 <= len(s) <= 600]
        else:
            documents += [("austen", text) for text in chunks(paragraphs)]
    if not haystack:
        raise SystemExit(f"the held-out book {HELD_OUT} was not found")
    documents += [("web", text) for text in web_chapters(options.raw) if len(text) > 500]
    documents += [("wordnet", text) for text in wordnet_glosses(options.raw)]

    with lzma.open(options.out / "corpus.jsonl.xz", "wt", encoding="utf-8", preset=6) as file:
        for source, text in documents:
            file.write(json.dumps({"source": source, "text": text}) + "\n")
    (options.out / "haystack.txt").write_text("\n".join(haystack) + "\n", encoding="utf-8")
    shutil.copyfile(options.gsm8k, options.out / "gsm8k_train.jsonl")
    for source, licence in LICENCES.items():
        texts = [text for name, text in documents if name == source]
        print(f"{source}: {len(texts)} documents, {sum(map(len, texts)):,} characters; {licence}")
    print(f"haystack: {len(haystack)} sentences, {sum(map(len, haystack)):,} characters")


if __name__ == "__main__":
    main()
