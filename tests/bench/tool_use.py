"""Tool use of small models as a number: simple calls among distractors, and loops of up to five turns.

`python tests/bench/tool_use.py ours=http://127.0.0.1:8000 [llama-server=http://127.0.0.1:8080] [--simple 40]
[--loops 20] [--modes auto strict required]`: each server serves the model, llama-server with --jinja. Greedy. A loop
counts if its files, or its answer, are right at its end.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import httpx

CITIES = {"Oslo": 3, "Rome": 21, "Lima": 18, "Cairo": 33, "Quito": 14, "Perth": 25, "Bern": 9, "Doha": 38}
WORDS = ("alpha", "beta", "gamma", "delta", "omega", "sigma", "kappa", "theta", "lambda", "zeta")
MAX_TURNS = 5


class Case(NamedTuple):
    """Question, and the name and arguments of the only right call."""

    question: str
    name: str
    arguments: dict[str, str]


class Loop(NamedTuple):
    """Task on files, and what tells from the files and the last answer if it is done."""

    task: str
    files: dict[str, str]
    is_done: Callable[[dict[str, str], str], bool]


def function(name: str, description: str, *keys: str) -> dict[str, Any]:
    properties = {key: {"type": "string"} for key in keys}
    parameters = {"type": "object", "properties": properties, "required": list(keys), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    function("get_weather", "Get the temperature in a city.", "city"),
    function("search_web", "Search the web for a query.", "query"),
    function("read_file", "Read a file.", "path"),
    function("write_file", "Write a text to a file.", "path", "text"),
    function("send_mail", "Send a mail.", "to", "text"),
    function("get_time", "Get the time in a city.", "city"),
]


def cases(count: int) -> list[Case]:
    """Return as many simple questions, of four kinds in turn."""
    found: list[Case] = []
    for number in range(count):
        word, city = WORDS[number // 4 % 10], list(CITIES)[number // 4 % 8]
        kinds = (
            Case(f"How warm is it in {city} now?", "get_weather", {"city": city}),
            Case(f"Search the web for {word} waves.", "search_web", {"query": f"{word} waves"}),
            Case(f"What does the file {word}.txt say?", "read_file", {"path": f"{word}.txt"}),
            Case(f"Write {word} to the file out.txt.", "write_file", {"path": "out.txt", "text": word}),
        )
        found.append(kinds[number % 4])
    return found


def loops(count: int) -> list[Loop]:
    """Return as many tasks: copies of a file, and questions that need two calls."""
    found: list[Loop] = []
    for number in range(count):
        word = WORDS[number // 2 % 10]
        first, second = (list(CITIES)[(number + shift) % 8] for shift in (0, 3))
        warmer = max((first, second), key=CITIES.__getitem__)
        copy = f"Read the file {word}.txt, then write the same text to copy.txt. Say when it is done."
        warm = f"Get the temperature in {first} and in {second}, then say which city is warmer."
        if number % 2:
            found.append(Loop(warm, {}, lambda files, said, city=warmer: len(files) == 2 and city in said[-80:]))
        else:
            found.append(Loop(copy, {f"{word}.txt": f"{word} 17"}, lambda files, _, w=word: _copied(files, w)))
    return found


def _copied(files: dict[str, str], word: str) -> bool:
    return files.get("copy.txt", "").strip() == f"{word} 17"


def ask(url: str, messages: Sequence[Any], mode: str) -> dict[str, Any]:
    """Return the message of an answer; a refusal counts as no answer."""
    tools = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    choice = {
        "tools": tools if mode == "strict" else TOOLS,
        "tool_choice": "required" if mode == "required" else "auto",
    }
    body = {
        "model": model_of(url),
        "messages": messages,
        "max_tokens": 96,
        "temperature": 0,
        "parallel_tool_calls": False,
        **choice,
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600)
    if answer.status_code == 400:
        return {"content": ""}
    message: dict[str, Any] = answer.raise_for_status().json()["choices"][0]["message"]
    return message


@cache
def model_of(url: str) -> str:
    """Return the name of the model that the server has."""
    return str(httpx.get(f"{url}/v1/models", timeout=60).json()["data"][0]["id"])


def called(message: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the names and arguments of the calls; broken JSON has no arguments."""
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [(function["name"], _arguments(function["arguments"])) for function in functions]


def _arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def answers(url: str, case: Case, mode: str) -> bool:
    """True if the one call is the right one."""
    found = called(ask(url, [{"role": "user", "content": case.question}], mode))
    wanted = {key: value.lower() for key, value in case.arguments.items()}
    return [(name, {k: str(v).lower().strip() for k, v in given.items()}) for name, given in found] == [
        (case.name, wanted)
    ]


def finishes(url: str, loop: Loop, mode: str) -> bool:
    """True if the task is done within the turns. After a required call the model answers as it likes."""
    files, messages, said = dict(loop.files), [{"role": "user", "content": loop.task}], ""
    for turn in range(MAX_TURNS):
        message = ask(url, messages, mode if turn == 0 or mode != "required" else "auto")
        calls, said = called(message), message.get("content") or ""
        messages.append(
            {"role": "assistant", **{key: message[key] for key in ("content", "tool_calls") if key in message}}
        )
        for call, (name, given) in zip(message.get("tool_calls") or (), calls, strict=True):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result(name, given, files)})
        if not calls:
            break
    return loop.is_done(files, said)


def result(name: str, given: dict[str, Any], files: dict[str, str]) -> str:
    """Run a call on the files, where temperatures that were asked for stand, too."""
    if name == "get_weather" and given.get("city") in CITIES:
        files[given["city"]] = str(CITIES[given["city"]])
        return f"{CITIES[given['city']]} degrees"
    if name == "read_file":
        return files.get(str(given.get("path")), "no such file")
    if name == "write_file":
        files[str(given.get("path"))] = str(given.get("text"))
        return "written"
    return "nothing found"


def main() -> None:
    """Ask each server, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    parser.add_argument("--simple", type=int, default=40)
    parser.add_argument("--loops", type=int, default=20)
    parser.add_argument("--modes", nargs="+", default=["auto", "strict", "required"])
    options = parser.parse_args()
    print("| server | calls | simple | loops |\n|---|---|---:|---:|")
    for name, url in (server.split("=", 1) for server in options.servers):
        for mode in options.modes:
            right = sum(answers(url, case, mode) for case in cases(options.simple))
            done = sum(finishes(url, loop, mode) for loop in loops(options.loops))
            print(f"| {name} | {mode} | {right} of {options.simple} | {done} of {options.loops} |", flush=True)


if __name__ == "__main__":
    main()
