"""A multipart/form-data body taken apart (RFC 7578), as browsers and clients send a file with some fields."""

import re
from dataclasses import dataclass

from ...engine.errors import InvalidRequestError

MAX_PARTS = 16
_MAX_HEAD_BYTES = 4096
_PARAMETER = re.compile(r';\s*([\w-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))')


@dataclass(frozen=True, slots=True)
class Part:
    """One field of a form; of a file, with its name."""

    name: str
    filename: str | None
    contents: bytes

    @property
    def text(self) -> str:
        """Of a field that is text. Raises InvalidRequestError."""
        try:
            return self.contents.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise InvalidRequestError(f"{self.name} is not valid UTF-8", param=self.name) from exc


def parse_form(body: bytes, content_type: str) -> dict[str, Part]:
    """The fields of a form by their names. Raises InvalidRequestError."""
    boundary = _parameters(content_type).get("boundary", "")
    if not content_type.lower().startswith("multipart/form-data") or not boundary or not boundary.isascii():
        raise InvalidRequestError("send the file as multipart/form-data, as `curl -F file=@FILE` does", param="file")
    delimiter = b"\r\n--" + boundary.encode()
    # What stands before the first delimiter means nothing; the last one is followed by --.
    _, *pieces = (b"\r\n" + body).split(delimiter, MAX_PARTS + 1)
    if not pieces or not pieces[-1].startswith(b"--"):
        raise InvalidRequestError(f"the form does not end, or has more than {MAX_PARTS} fields")
    parts = [_part(piece) for piece in pieces[:-1]]
    return {part.name: part for part in parts}


def _part(piece: bytes) -> Part:
    head, separator, contents = piece.lstrip(b" \t").removeprefix(b"\r\n").partition(b"\r\n\r\n")
    if not separator or len(head) > _MAX_HEAD_BYTES:
        raise InvalidRequestError("a field of the form has no head that ends with an empty line")
    for line in head.decode("utf-8", "replace").split("\r\n"):
        header, _, value = line.partition(":")
        names = _parameters(value) if header.strip().lower() == "content-disposition" else {}
        if "name" in names:
            return Part(names["name"], names.get("filename"), contents)
    raise InvalidRequestError("a field of the form has no name")


def _parameters(header: str) -> dict[str, str]:
    """What follows a header's value: `; name="value"`."""
    found = _PARAMETER.findall(header)
    return {name.lower(): token or re.sub(r"\\(.)", r"\1", quoted) for name, quoted, token in found}
