"""Catalog of the clients that `make clients` runs, in catalog.json's order: requirements and scripts.

A client of a family has the requirements of the family's first.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Client:
    """Client package: its requirements (pip's or npm's words), and the script that uses it."""

    name: str
    script: str
    requirements: tuple[str, ...]
    pools: bool = False  # True: on the models with --pooler-config, for packages that embed
    is_scripted: bool = False  # True: on the demo model with the extension of site/, which says what a script says
    has_several: bool = False  # True: on one server of all models, with a place for one
    family: str = ""  # folder of clients with equal requirements; without it the client's own

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """Kind of server; clients of one kind share theirs."""
        return (self.is_scripted, self.pools, self.has_several)

    @property
    def is_node(self) -> bool:
        """True if the script runs in node."""
        return self.script.endswith(".mjs")

    @property
    def is_npm(self) -> bool:
        """True if npm installs the requirements."""
        return "==" not in self.requirements[0]

    @property
    def folder(self) -> str:
        """Name of the folder that holds the installed packages."""
        return self.family or self.name


def _clients() -> Iterator[Client]:
    requirements: dict[str, list[str]] = {}
    for row in json.loads(Path(__file__).with_suffix(".json").read_text()):
        packages = requirements.setdefault(row.get("family", row["name"]), row.pop("requirements", []))
        yield Client(**row, requirements=tuple(packages))


CLIENTS = tuple(_clients())
