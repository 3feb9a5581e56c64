"""Forms: what clients send is read, whatever else is sent is refused in words."""

import contextlib
import random

from splitfuse.engine.errors import InvalidRequestError
from splitfuse.server.http.multipart import Part, parse_form

PIECES = [
    *(b"--x", b"\r\n", b"--", b"Content-Disposition: form-data; ", b'name="file"', b"; filename*=utf-8''%ff%00a"),
    *(b"; filename*0*=x'y'z", b'; filename="\xff\xfe"', b";;==", b"name*=a", b"\r\n\r\n", b"x", b'"', b"\x00", b"\\"),
]
TYPES = ["multipart/form-data; boundary=x", 'multipart/form-data; boundary="x"', "multipart/form-data; boundary=", ""]


def test_a_form_with_all_that_may_stand_in_one() -> None:
    head = b'preamble\r\n--b c \r\nX-Other: 1\r\ncontent-disposition: form-data; name="a\\"b"; filename=plain\r\n\r\n'
    body = head + b'\r\n--b \r\n--b c\r\nContent-Disposition: form-data; name="t"\r\n\r\n\r\n--b c--\r\nepilogue'
    form = parse_form(body, 'Multipart/Form-Data; charset=utf-8; boundary="b c"')
    assert form == {'a"b': Part('a"b', "plain", b"\r\n--b "), "t": Part("t", None, b"")}


def test_nothing_else_gets_through() -> None:
    rng = random.Random(1)
    num_read = 0
    for _ in range(3000):
        body = b"".join(rng.choice(PIECES) for _ in range(rng.randint(0, 25)))
        if rng.random() < 0.5:
            body = b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + body + b"\r\n--x--"
        with contextlib.suppress(InvalidRequestError):
            form = parse_form(body, rng.choice(TYPES))
            num_read += 1
            "".join(part.filename or part.name for part in form.values()).encode()  # holds no surrogates
    assert num_read > 100
