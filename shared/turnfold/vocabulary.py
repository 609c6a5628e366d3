"""The tokenizer: o200k_base, read from files that are already on this machine and never fetched."""

import os
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable
from hashlib import sha1, sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from turnfold.core.tokens import pieces
from turnfold.errors import StartError

NAME: Final = "o200k_base"
URL: Final = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
SHA256: Final = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
WORDS: Final = "|".join(
    (
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    )
)
PIECE_CHARACTERS: Final = 8_192
INSTALL: Final = "install turnfold[server], or let TIKTOKEN_CACHE_DIR name a directory that holds the o200k_base vocabulary of tiktoken"


def load_counter() -> Callable[[str], int]:
    """What counts the o200k_base tokens of any text; about 0.4 s and 60 MB, once a process.

    Long texts are counted in pieces, since the tokenizer is quadratic in long runs of one character and gives up on
    very long ones; pieces part between words wherever they can, so the count stays what it is for the whole.

    Raises:
        StartError: tiktoken or the vocabulary file is missing or damaged; the text says what to install.
    """
    try:
        from tiktoken import Encoding  # noqa: PLC0415 - only who counts needs it installed
    except ImportError as error:
        raise StartError(f"tiktoken is not installed; {INSTALL}") from error
    encoding = Encoding(NAME, pat_str=WORDS, mergeable_ranks=_ranks(_vocabulary_file()), special_tokens={})
    encode = encoding.encode_ordinary

    def count(text: str) -> int:
        if len(text) <= PIECE_CHARACTERS:
            return len(encode(text))
        return sum(len(encode(piece)) for piece in pieces(text, PIECE_CHARACTERS))

    return count


def bundled_file(*parts: str) -> Path | None:
    """A file of the installed litellm, found without importing it, or None."""
    try:
        spec = find_spec("litellm")
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder, *parts)
        if file.is_file():
            return file
    return None


def _vocabulary_file() -> Path:
    cache_name = sha1(URL.encode(), usedforsecurity=False).hexdigest()
    cache = os.environ.get("TIKTOKEN_CACHE_DIR")
    if cache and (file := Path(cache, cache_name)).is_file():
        return file
    bundled = bundled_file("litellm_core_utils", "tokenizers", cache_name)
    if bundled is None:
        raise StartError(f"the vocabulary file of {NAME} is not on this machine; {INSTALL}")
    return bundled


def _ranks(file: Path) -> dict[bytes, int]:
    """The tokens of a vocabulary file, each with its rank."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise StartError(f"{file} cannot be read ({error.strerror}); {INSTALL}") from error
    if sha256(content).hexdigest() != SHA256:
        raise StartError(f"{file} is not the vocabulary of {NAME}; {INSTALL}")
    try:
        return {b64decode(token): int(rank) for token, rank in map(bytes.split, content.splitlines())}
    except (ValueError, NotBase64) as error:
        raise StartError(f"{file} is damaged; {INSTALL}") from error
