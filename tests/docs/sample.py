"""Draw sentences of the documentation at random, for a reader who does not know Chorale to mark what is unclear.

python -m tests.docs.sample --count 60 --seed 1
"""

import argparse
import random
import re
import sys

from tests.docs.pages import DOCS, PAGES, ROOT

_SHORTEST_WORDS = 6


def sentences(text: str) -> list[str]:
    """Return the sentences of a page's paragraphs and list items, without code blocks, tables and headings."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "#", "!", ":::"))]
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines))
    found = (part for each in paragraphs for part in re.split(r"(?<=[.!?])\s+(?=[A-Z*`])", " ".join(each.split())))
    return [sentence for sentence in found if len(sentence.split()) >= _SHORTEST_WORDS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    pages = {page: DOCS / page for page in PAGES} | {name: ROOT / name for name in ("README.md", "CHANGELOG.md")}
    drawn = [(page, sentence) for page, path in pages.items() for sentence in sentences(path.read_text())]
    for page, sentence in random.Random(options.seed).sample(drawn, min(options.count, len(drawn))):
        sys.stdout.write(f"{page}: {sentence}\n")


if __name__ == "__main__":
    main()
