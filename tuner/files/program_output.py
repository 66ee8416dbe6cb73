"""Write programs as one file or one file per rank, compressed or not, and read them back as one text.

MSCCL's loaders take the <gpu> of their own rank from a file and skip the others, so a file with that one alone serves
the process of the rank. Files that end in .gz are compressed, for readers that support it, as ours do.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from chorale.job.files import read_file
from chorale.synth.errors import InvalidInput
from chorale.tuner.files.read_write import require_new_folder, write_parts

COMPRESSED = ".gz"
_END = b"</algo>\n"
_RANK_END = b"\n  </gpu>\n"
_GZIP = 31  # zlib: a header of gzip without a name and a time, so that equal programs have equal bytes
_LEVEL = 3  # of compression: a third of the time of the usual one, for a tenth more bytes
MAX_FILES = 2**16


def write_program(output: str, parts: Iterable[bytes], per_rank: bool) -> None:
    """Write the text of a program, given as root, ranks and end, to a file, or to one file per rank in a new folder.

    Raises InvalidInput if the folder of the file does not exist, or if the folder for ranks is not empty.
    """
    if not per_rank:
        write_parts(output, _compressed(parts) if output.endswith(COMPRESSED) else parts)
        return
    folder = Path(output)
    require_new_folder(folder)
    folder.mkdir(exist_ok=True)
    ranks = iter(parts)
    root = next(ranks)
    for number, part in enumerate(each for each in ranks if each != _END):
        write_parts(folder / f"rank-{number:05}.xml", (root, part, _END))


def parts_of(text: bytes, target: str) -> Iterator[bytes]:
    """Yield the root, the ranks and the end of a program that was written here; InvalidInput unless it is XML."""
    if not text.endswith(_END):
        raise InvalidInput("files for single ranks must be XML", target, "write one file")
    first = text.index(b"\n") + 1
    yield text[:first]
    while not text.startswith(_END, first):
        before = text.find(_RANK_END, first)
        if before < 0:
            raise InvalidInput("files for single ranks must be as they were written", target, "lower it again")
        yield text[first : before + len(_RANK_END)]
        first = before + len(_RANK_END)
    yield _END


def read_program_text(path: str, max_bytes: int) -> bytes:
    """Return the text (at most `max_bytes`) of a program file, compressed or not, or of a folder with a file per rank.
    Raises InvalidInput if the files of ranks belong to different programs.
    """
    if not Path(path).is_dir():
        return _read(path, max_bytes)
    files = sorted(Path(path).glob("rank-*.xml"))
    if not 0 < len(files) <= MAX_FILES:
        rule = f"a folder of a program must hold 1 to {MAX_FILES} files rank-NUMBER.xml"
        raise InvalidInput(rule, f"{path}: {len(files)}", "lower it with --per-rank")
    texts: list[bytes] = []
    left = max_bytes
    for file in files:
        root, *ranks, _ = parts_of(_read(str(file), left), file.name)
        if texts and root != texts[0]:
            rule = "the files of the ranks must belong to one program"
            raise InvalidInput(rule, f"{file}: another root", "lower it again into a new folder")
        texts += ranks if texts else [root, *ranks]
        left -= sum(map(len, ranks))
    return b"".join([*texts, _END])


def _read(path: str, max_bytes: int) -> bytes:
    content = read_file(path, max_bytes)
    if not path.endswith(COMPRESSED):
        return content
    stream = zlib.decompressobj(_GZIP)
    try:
        text = stream.decompress(content, max_bytes + 1)
    except zlib.error as error:
        raise InvalidInput("a file that ends in .gz must be compressed", f"{path}: {error}", "write it again") from None
    if len(text) > max_bytes:
        raise InvalidInput(f"a program must be at most {max_bytes} bytes", path, "use a smaller program")
    if not stream.eof:
        raise InvalidInput("a compressed file must be whole", path, "write it again")
    return text


def _compressed(parts: Iterable[bytes]) -> Iterator[bytes]:
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    for part in parts:
        yield stream.compress(part)
    yield stream.flush()
