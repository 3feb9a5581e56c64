"""Dockerfile reader, just enough for this project's file: instructions by stage, joined over line ends."""

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """Instruction: `COPY --from=build a b` is name COPY, flags {from: build}, text "a b"."""

    name: str
    flags: dict[str, str]
    text: str

    @property
    def words(self) -> list[str]:
        """Arguments, from a JSON list (the exec form) or shell words."""
        if self.text.startswith("["):
            return [str(word) for word in json.loads(self.text)]
        return shlex.split(self.text)

    @property
    def is_exec_form(self) -> bool:
        """True if the instruction runs without a shell."""
        return self.text.startswith("[")


@dataclass
class Stage:
    """Stage: the instructions below one FROM."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        """Return the stage's instructions of one name."""
        return [instruction for instruction in self.instructions if instruction.name == name]


def read_dockerfile(path: Path) -> list[Stage]:
    """Return the stages in order, without the lines before the first FROM."""
    stages: list[Stage] = []
    for line in _logical_lines(path.read_text()):
        name, _, text = line.partition(" ")
        flags = {}
        while text.startswith("--"):
            flag, _, text = text.partition(" ")
            key, _, value = flag[2:].partition("=")
            flags[key] = value
        instruction = Instruction(name.upper(), flags, text.strip())
        if instruction.name == "FROM":
            base, _, stage_name = instruction.text.partition(" AS ")
            stages.append(Stage(base, stage_name))
        elif stages:
            stages[-1].instructions.append(instruction)
    return stages


def ancestry(stages: list[Stage], name: str) -> list[Stage]:
    """Return the stage of that name and the stages on which it builds, the oldest first."""
    by_name = {stage.name: stage for stage in stages}
    line = [by_name[name]]
    while line[0].base in by_name:
        line.insert(0, by_name[line[0].base])
    return line


def _logical_lines(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [line.strip() for line in "\n".join(lines).replace("\\\n", " ").splitlines()]
