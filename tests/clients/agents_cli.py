"""Coding agents mend a file, with a scripted model: `SPLITFUSE_CLIENT=codex python tests/clients/agents_cli.py URL`.

Each command runs in a home of its own. The server has the extension of site/scripted, so that the model says what an
agent needs: calls of its tools, then an answer.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from checks import follow, key, main, said

TASK = "Mend colour.txt: the sky is blue."
ANSWER = "The sky is blue now."
SECONDS = 600


class Agent:
    """Checks of an agent, in an empty home beside a folder with one file. A subclass states its command and calls."""

    package: str
    steps: Sequence[str | Mapping[str, Any]]  # what the model says to the task; {file} is the file's path
    needs_tools = True
    again: Sequence[str]  # command that goes on in the same session

    def __init__(self, url: str) -> None:
        self._url = url
        # Codex writes no programs into a home below /tmp.
        self._temporary = tempfile.TemporaryDirectory(prefix="splitfuse-", dir="/var/tmp", ignore_cleanup_errors=True)
        self.home = Path(self._temporary.name)
        self.folder = self.home / "work"
        self.folder.mkdir()
        self.file = self.folder / "colour.txt"
        self.file.write_text("The sky is green.\n")
        self.prepare()

    def prepare(self) -> None:
        """Write the agent's settings."""

    def command(self, task: str) -> Sequence[str]:
        """Return the command of a task."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return the variables that the command needs."""
        return {}

    def write(self, name: str, content: object) -> None:
        """Write a file of the home, as JSON unless it is text."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    @property
    def url(self) -> str:
        """Base URL of OpenAI's API."""
        return f"{self._url}/v1"

    def run(self, words: Sequence[str], steps: Sequence[Any]) -> tuple[str, list[str]]:
        """Run a command while the model follows the steps. Returns the output, and the prompts of the steps."""
        script = json.loads(json.dumps(steps).replace("{file}", str(self.file)))
        follow(self._url, *script, marker=TASK, needs_tools=self.needs_tools)
        env = {"HOME": str(self.home), "PATH": os.environ["PATH"], "NO_PROXY": "127.0.0.1", "TERM": "dumb"}
        bounds: dict[str, Any] = {"cwd": self.folder, "input": "", "capture_output": True, "text": True}
        ended = subprocess.run(
            words, env=env | self.environment(), timeout=SECONDS, check=False, start_new_session=True, **bounds
        )
        output = ended.stdout + ended.stderr
        assert ended.returncode == 0, f"exit code {ended.returncode}\n{output[-4000:]}"
        return output, said(self._url)


class Checks:
    """Checks of an agent: one method per check, run in this order."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def whole_loop(self) -> None:
        """Calls, results, a changed file, the answer."""
        agent = self._agent
        output, prompts = agent.run(agent.command(TASK), [*agent.steps, ANSWER] if agent.needs_tools else agent.steps)
        assert agent.file.read_text() == "The sky is blue.\n", output[-3000:]
        assert ANSWER in output, output[-3000:]
        assert len(prompts) >= len(agent.steps) + agent.needs_tools, len(prompts)
        print(f"# {len(prompts)} prompts, the longest of {max(map(len, prompts))} characters")

    def session_goes_on(self) -> None:
        """Another task in the same session, whose prompt has the first one's turns."""
        agent = self._agent
        output, prompts = agent.run(agent.again, ["It is done."] * 9)
        assert "It is done." in output, output[-3000:]
        assert ANSWER in prompts[0]


class Codex(Agent):
    """OpenAI's Codex CLI, over the Responses API."""

    package = "@openai/codex"
    steps = ({"name": "exec_command", "arguments": {"cmd": "sed -i s/green/blue/ colour.txt && cat colour.txt"}},)
    again = ("codex", "exec", "resume", "--last", "--skip-git-repo-check", "And now?")

    def prepare(self) -> None:
        """Name the server as a provider."""
        self.write(
            ".codex/config.toml",
            'model = "demo"\nmodel_provider = "splitfuse"\nmodel_context_window = 131072\napproval_policy = "never"\n'
            'sandbox_mode = "danger-full-access"\n[model_providers.splitfuse]\nname = "splitfuse"\n'
            f'base_url = "{self.url}"\nwire_api = "responses"\nenv_key = "SPLITFUSE_API_KEY"\n',
        )

    def environment(self) -> dict[str, str]:
        """Return the key."""
        return {"SPLITFUSE_API_KEY": key()}

    def command(self, task: str) -> Sequence[str]:
        """Return `codex exec`."""
        return ("codex", "exec", "--skip-git-repo-check", task)


class ClaudeCode(Agent):
    """Anthropic's Claude Code, over the Messages API, with all of its tools."""

    package = "@anthropic-ai/claude-code"
    steps = (
        {"name": "Read", "arguments": {"file_path": "{file}"}},
        {"name": "Edit", "arguments": {"file_path": "{file}", "old_string": "green", "new_string": "blue"}},
    )
    options = ("--model", "demo", "--permission-mode", "acceptEdits")
    again = ("claude", *options, "--continue", "-p", "And now?")

    def environment(self) -> dict[str, str]:
        """Return the server's address."""
        return {
            "ANTHROPIC_BASE_URL": self._url,
            "ANTHROPIC_API_KEY": key(),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "0",
        }

    def command(self, task: str) -> Sequence[str]:
        """Return `claude -p`."""
        return ("claude", *self.options, "-p", task)


class OpenCode(Agent):
    """opencode, over chat completions by the AI SDK."""

    package = "opencode-ai"
    steps = (
        {"name": "read", "arguments": {"filePath": "{file}"}},
        {"name": "edit", "arguments": {"filePath": "{file}", "oldString": "green", "newString": "blue"}},
    )
    again = ("opencode", "run", "--continue", "And now?")

    def prepare(self) -> None:
        """Name the server as a provider."""
        models = {"demo": {"name": "demo", "tool_call": True, "limit": {"context": 131072, "output": 4096}}}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "splitfuse", "models": models}
        provider["options"] = {"baseURL": self.url, "apiKey": key()}
        settings = {
            "provider": {"splitfuse": provider},
            "model": "splitfuse/demo",
            "autoupdate": False,
            "share": "disabled",
        }
        self.write("work/opencode.json", settings)

    def environment(self) -> dict[str, str]:
        """Return the switches against downloads."""
        return {
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        }

    def command(self, task: str) -> Sequence[str]:
        """Return `opencode run`."""
        return ("opencode", "run", task)


class QwenCode(Agent):
    """Qwen Code, over chat completions by the openai package."""

    package = "@qwen-code/qwen-code"
    steps = (
        {"name": "read_file", "arguments": {"file_path": "{file}"}},
        {"name": "edit", "arguments": {"file_path": "{file}", "old_string": "green", "new_string": "blue"}},
    )
    again = ("qwen", "--yolo", "--continue", "-p", "And now?")

    def environment(self) -> dict[str, str]:
        """Return the server's address."""
        return {"OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": key(), "OPENAI_MODEL": "demo"}

    def prepare(self) -> None:
        """Choose the key as the way in."""
        selected = {"auth": {"selectedType": "openai"}}
        quiet = {"usageStatisticsEnabled": False, "enableAutoUpdate": False}
        self.write(".qwen/settings.json", {"security": selected, "privacy": quiet, "general": quiet})

    def command(self, task: str) -> Sequence[str]:
        """Return `qwen -p`."""
        return ("qwen", "--yolo", "-p", task)


class Aider(Agent):
    """aider, over chat completions by litellm, with edits as blocks of text."""

    package = "aider-chat"
    needs_tools = False
    edit = "<<<<<<< SEARCH\nThe sky is green.\n=======\nThe sky is blue.\n>>>>>>> REPLACE"
    steps = (f"colour.txt\n```\n{edit}\n```\n{ANSWER}",)

    options = (
        *("--model", "openai/demo", "--edit-format", "diff", "--no-git", "--yes-always", "--no-show-model-warnings"),
        *("--no-check-update", "--analytics-disable"),
    )
    again = ("aider", *options, "--restore-chat-history", "--message", "And now?")

    def environment(self) -> dict[str, str]:
        """Return the server's address."""
        return {"OPENAI_API_BASE": self.url, "OPENAI_API_KEY": key(), "LITELLM_LOCAL_MODEL_COST_MAP": "true"}

    def command(self, task: str) -> Sequence[str]:
        """Return `aider --message`."""
        return ("aider", *self.options, "--message", task, "colour.txt")


class Gptme(Agent):
    """gptme, over chat completions, with calls as blocks of text."""

    package = "gptme"
    needs_tools = False
    steps = ("```shell\nsed -i s/green/blue/ colour.txt && cat colour.txt\n```", ANSWER)
    options = ("--non-interactive", "--model", "local/demo", "--tools", "shell", "--tool-format", "markdown")
    again = ("gptme", *options, "--resume", "And now?")

    def environment(self) -> dict[str, str]:
        """Return the server's address."""
        return {"OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": key(), "GPTME_TIKTOKEN_TIMEOUT": "0"}

    def command(self, task: str) -> Sequence[str]:
        """Return `gptme`."""
        return ("gptme", *self.options, task)


class Continue(Agent):
    """Continue's command, over chat completions by the openai package."""

    package = "@continuedev/cli"
    steps = ({"name": "Bash", "arguments": {"command": "sed -i s/green/blue/ colour.txt && cat colour.txt"}},)
    options = ("--config", "../config.yaml", "--auto")
    again = ("cn", *options, "--resume", "-p", "And now?")

    def environment(self) -> dict[str, str]:
        """Return the switch against reports."""
        return {"CONTINUE_TELEMETRY_ENABLED": "0"}

    def prepare(self) -> None:
        """Name the server as a provider."""
        model = {"name": "demo", "provider": "openai", "model": "demo", "apiBase": self.url, "apiKey": key()}
        model |= {"capabilities": ["tool_use"], "defaultCompletionOptions": {"contextLength": 131072}}
        self.write("config.yaml", {"name": "splitfuse", "version": "1.0.0", "schema": "v1", "models": [model]})

    def command(self, task: str) -> Sequence[str]:
        """Return `cn -p`."""
        return ("cn", *self.options, "-p", task)


AGENTS = {
    "codex": Codex,
    "claude-code-agent": ClaudeCode,
    "opencode": OpenCode,
    "qwen-code": QwenCode,
    "aider": Aider,
    "gptme": Gptme,
    "continue": Continue,
}

if __name__ == "__main__":
    chosen = AGENTS[os.environ["SPLITFUSE_CLIENT"]]
    sys.exit(main(lambda url: Checks(chosen(url)), chosen.package))
