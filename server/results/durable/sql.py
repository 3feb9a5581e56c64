"""Session: statements that SQLite and PostgreSQL share, and a Dialect that names their differences."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Differences between SQLite's statements and PostgreSQL's."""

    tables: str  # prefix of a table's name
    mark: str  # placeholder of a value
    known_segment: str = ""  # clause for a segment that the table has
    first_segment: str = "?"  # value of a new job's column
    ending: str = ""  # further changes at the end of a job, whose result is the fourth value
    num_bytes: str  # size of a job
    probe: tuple[str, ...] = ()  # statements that fail if nothing can be written; a transaction alone need not
    is_out_of_use: str  # condition of expired batches that can go

    @functools.cache  # noqa: B019  # two dialects, and statements in the program's text
    def translate(self, query: str) -> str:
        """Return the statement with this dialect's names and placeholders."""
        return query.replace("splitfuse_", self.tables).replace("?", self.mark)


class Session:
    """Cursors of a connection, for statements in the common form."""

    def __init__(self, new_cursor: Callable[[], Any], dialect: Dialect) -> None:
        self._new_cursor = new_cursor
        self._dialect = dialect

    def execute(self, query: str, *values: object) -> Any:
        """Execute a statement. Returns the driver's cursor."""
        return self._new_cursor().execute(self._dialect.translate(query), values)

    def execute_many(self, query: str, rows: Sequence[Sequence[object]]) -> int:
        """Execute a statement with each row of values. Returns the number of rows changed in the table."""
        if not rows:
            return 0
        cursor = self._new_cursor()
        cursor.executemany(self._dialect.translate(query), rows)
        return int(cursor.rowcount)

    def insert(self, table: str, rows: Sequence[dict[str, object]], known: str = "") -> None:
        """Insert rows with equal columns. `known`: the clause for rows that the table has."""
        if rows:
            first_segment = self._dialect.first_segment
            marks = ", ".join(first_segment if name == "first_segment" else "?" for name in rows[0])
            insert = f"INSERT INTO splitfuse_{table} ({', '.join(rows[0])}) SELECT {marks} WHERE TRUE {known}"
            self.execute_many(insert, [tuple(row.values()) for row in rows])
