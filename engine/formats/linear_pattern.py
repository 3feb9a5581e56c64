"""Linear patterns: regular expressions of files and requests. Python's `re` could run one for years, with the GIL."""

from collections.abc import Callable


def linear_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a test if a text has a match, in time that grows with the text, by Rust's engine in pydantic.

    Raises ValueError with the reason: the engine has no look-around, and no references to groups.
    """
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python
    except (SchemaError, UnicodeEncodeError) as exc:
        raise ValueError(str(exc).strip().splitlines()[-1].strip().removeprefix("error: ")) from exc
