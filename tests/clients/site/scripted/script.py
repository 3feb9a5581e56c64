"""Script: the answers of a model to one agent, step by step."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

IDLE = "Fine."
_TOOLS = "You can call these functions:"  # in a prompt for a model whose template knows no tools
_TURN = "<|assistant|>"  # begins a turn of the model, the last one too


@dataclass(frozen=True, kw_only=True)
class Script:
    """Steps of the agent's task. A step is a text, or a call {"name", "arguments"}.

    `marker`: words of the task. `needs_tools`: side requests without tools, such as for a title, are no steps.
    """

    marker: str
    steps: Sequence[str | Mapping[str, Any]]
    needs_tools: bool = True

    def place(self, prompt: str) -> int | None:
        """Return the number of the step that this prompt asks for; None if none of the script."""
        _, found, after = prompt.partition(self.marker)
        if not found or (self.needs_tools and _TOOLS not in prompt):
            return None
        return min(after.count(_TURN) - 1, len(self.steps) - 1)

    def text(self, place: int | None) -> str:
        """Return the model's text at a step."""
        if place is None:
            return IDLE
        step = self.steps[place]
        return step if isinstance(step, str) else f"<tool_call>\n{json.dumps(step)}\n</tool_call>"
