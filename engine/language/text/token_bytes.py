"""Bytes of one token alone, which need not be whole characters."""

from functools import cache

from .tokenizer import Tokenizer

_BROKEN = "\N{REPLACEMENT CHARACTER}"


def token_bytes(tokenizer: Tokenizer, token_id: int, text: str) -> bytes:
    """Return the bytes of a token whose text is `text`. The bytes of an answer's tokens join to the answer."""
    if _BROKEN not in text:
        return text.encode("utf-8", "replace")
    piece = tokenizer.piece(token_id)
    if token_id in tokenizer.byte_ids:
        return bytes.fromhex(piece[3:5])  # <0xE2>
    alphabet = _alphabet()
    return bytes(alphabet[char] for char in piece) if alphabet.keys() >= set(piece) else text.encode()


@cache
def _alphabet() -> dict[str, int]:
    """Map the characters of byte-level vocabularies to bytes by GPT-2's table."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}
