"""Commands: `SPLITFUSE_CLIENT=llm python tests/clients/commands_cli.py URL` runs the checks of one.

Those that catalog.json calls scripted have a model that says a script. The folder of a tokenizer is in
SPLITFUSE_TOKENIZER: nothing is fetched.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from checks import ANSWER, CALL, QUESTION, WET, At, each, run

Checks = Mapping[str, Callable[[], None]]
# Seconds: on a busy machine aiperf's processes took longer than its default to start and import transformers.
PATIENCE = ("DATASET_CONFIGURATION", "SERVICE_PROFILE_CONFIGURE", "SERVICE_REGISTRATION")
SHELL_FUNCTION = '''
from pydantic import BaseModel


class Function(BaseModel):
    """Tell the weather in a town."""

    town: str

    @classmethod
    def execute(cls, town: str) -> str:
        return "It rains."

    @classmethod
    def openai_schema(cls) -> dict:
        schema = cls.model_json_schema()
        about = {"name": "weather", "description": cls.__doc__, "parameters": schema}
        return {"type": "function", "function": about}
'''
LOCUSTFILE = """
from gevent import spawn
from locust import HttpUser, constant, task

HEADERS = {"Authorization": "Bearer KEY"}
CHAT = {"model": "MODEL", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}

class User(HttpUser):
    wait_time = constant(0)
    num_rounds = 0

    @task
    def everything(self):
        self.client.post("/v1/chat/completions", json=CHAT, headers=HEADERS)
        asked = {"json": {**CHAT, "stream": True}, "headers": HEADERS}
        with self.client.post("/v1/chat/completions", **asked, stream=True, catch_response=True) as got:
            if b"data: [DONE]" not in list(got.iter_lines()):
                got.failure("the stream has no end")
        job = self.client.post("/generate", json={"prompt": "Once", "max_tokens": 8}, headers=HEADERS).json()
        self.client.get(job["result_url"] + "?wait=30", headers=HEADERS, name="/result")
        User.num_rounds += 1
        if User.num_rounds == 24:
            spawn(self.environment.runner.quit)  # which waits for the end of all users
"""


def done(*words: str, code: int = 0, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command to its end. Returns its output."""
    environment = {**os.environ, **(env or {})}
    pipes: dict[str, Any] = {"capture_output": True, "text": True, "input": "", "timeout": 600, "check": False}
    process = subprocess.run(words, env=environment, cwd=cwd, **pipes)
    assert process.returncode == code, process.stdout[-3000:] + process.stderr[-3000:]
    return str(process.stdout)


def folder() -> Path:
    """Return a new folder."""
    return Path(tempfile.mkdtemp(prefix="splitfuse-"))


def aiperf(at: At) -> Checks:
    def report(kind: str, *more: str) -> dict[str, Any]:
        home = folder()
        words = ["aiperf", "profile", "--model", at.name, "--url", at.url, "--endpoint-type", kind, *more]
        words += ["--api-key", at.key, "--tokenizer", os.environ["SPLITFUSE_TOKENIZER"], "--ui", "none"]
        words += ["--request-count", "8", "--concurrency", "4", "--artifact-dir", str(home), "--workers-max", "1"]
        words += ["--synthetic-input-tokens-mean", "16", "--output-tokens-mean", "8"]
        # with HF_HUB_OFFLINE, aiperf would look for the folder in the hub's cache
        done(*words, env={f"AIPERF_{name}_TIMEOUT": "1200" for name in PATIENCE}, cwd=home)
        (path,) = home.rglob("profile_export_aiperf.json")
        figures: dict[str, Any] = json.loads(path.read_text())
        assert figures["request_count"]["avg"] == 8
        return figures

    def chat_streamed() -> None:
        assert report("chat", "--streaming")["time_to_first_token"]["avg"] > 0

    return {"chat_streamed": chat_streamed, "completions": each(report, "completions")}


def guidellm(at: At) -> Checks:
    def report(route: str) -> None:
        path = folder() / "report.json"
        backend = f"kind=openai_http,target={at.url},model={at.name},request_format={route},api_key={at.key}"
        words = ["guidellm", "run", "--disable-console", "--backend", backend]
        words += ["--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=8"]
        words += ["--tokenizer", f"kind=huggingface_auto,model={os.environ['SPLITFUSE_TOKENIZER']}"]
        words += ["--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8"]
        done(*words, "--output", f"kind=json,path={path}", env={"HF_HUB_OFFLINE": "1"})
        metrics = json.loads(path.read_text())["benchmarks"][0]["metrics"]
        assert (metrics["request_totals"]["errored"], metrics["request_totals"]["successful"]) == (0, 8)
        assert metrics["output_token_count"]["successful"]["mean"] == 8

    return {"chat": each(report, "/v1/chat/completions"), "completions": each(report, "/v1/completions")}


def httpie(at: At) -> Checks:
    chats = f"{at.v1}/chat/completions"
    asked = (f"model={at.name}", "messages[0][role]=user", f"messages[0][content]={QUESTION}")

    def http(*words: str, code: int = 0) -> str:
        options = [word for word in words if word.startswith("--")]
        rest = [word for word in words if not word.startswith("--")]
        head = ("http", "--ignore-stdin", "--check-status", "--auth-type=bearer", f"--auth={at.key}")
        return done(*head, *options, "POST", chats, *rest, code=code)

    def stream() -> str:
        lines = http("--body", "--stream", *asked, "stream:=true").splitlines()
        assert "data: [DONE]" in lines
        parts = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        return "".join(part["choices"][0]["delta"].get("content") or "" for part in parts)

    def errors() -> None:
        assert "not valid JSON" in http("--form", "model=x", code=4)

    chat = lambda: json.loads(http("--body", *asked, "max_tokens:=20"))["choices"][0]["message"]["content"]  # noqa: E731
    return {"chat": lambda: at.answers(chat), "stream": lambda: at.answers(stream), "errors": errors}


def llm(at: At) -> Checks:
    home = folder()
    model = {"model_name": at.name, "api_base": at.v1, "api_key_name": "splitfuse"}
    able = {"supports_schema": True, "supports_tools": True}
    kinds: dict[str, Any] = {"chat": able, "text": {"completion": True}, "responses": {**able, "responses": True}}
    models = [{"model_id": name, **model, **fields} for name, fields in kinds.items()]
    (home / "extra-openai-models.yaml").write_text(json.dumps(models))
    (home / "keys.json").write_text(json.dumps({"splitfuse": at.key}))

    def ask(*words: str, code: int = 0) -> str:
        return done("llm", *words, env={"LLM_USER_PATH": str(home)}, code=code)

    def brief(kind: str) -> None:
        assert ask("-m", kind, QUESTION, "-o", "max_tokens", "24").strip()

    def schema() -> None:
        wet = '{"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"]}'
        assert isinstance(json.loads(ask("-m", "chat", "--schema", wet, QUESTION))["wet"], bool)

    def tool() -> None:
        function = 'def weather(town: str) -> str:\n    "The weather in a town."\n    return "It rains."\n'
        ask("-m", "chat", "--functions", function, QUESTION, "-o", "max_tokens", "60", "--cl", "3")

    def errors() -> None:
        ask("-m", "chat", "x " * 60_000, code=1)

    checks = {name: each(brief, name) for name in kinds}
    return checks | {"schema": schema, "tool_accepted": tool, "errors": errors}


def lm_eval(at: At) -> Checks:
    home = folder()
    rows = [
        {"text": f"{town} is in", "answers": [" Italy", " Norway"], "right": right}
        for right, town in enumerate(("Rome", "Oslo"))
    ]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(home / "rows.jsonl")}}}
    tasks: dict[str, Any] = {
        "choice": {"output_type": "multiple_choice", "doc_to_choice": "answers", "doc_to_target": "right"},
        "generate": {
            "output_type": "generate_until",
            "doc_to_target": "{{answers[right]}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 16},
            "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
        },
    }
    tasks["choice"]["metric_list"] = [{"metric": "acc"}]
    for name, fields in tasks.items():
        task = {"task": name, "test_split": "test", "doc_to_text": "text", **data, **fields}
        (home / f"{name}.yaml").write_text(json.dumps(task))

    def results(names: str, kind: str, route: str, *more: str) -> dict[str, Any]:
        where = f"base_url={at.v1}/{route},tokenizer={os.environ['SPLITFUSE_TOKENIZER']},model={at.name}"
        words = ["lm_eval", "run", "--model", f"local-{kind}", "--model_args", where, "--tasks", names, *more]
        words += ["--include_path", str(home), "--output_path", str(home / "out")]
        done(*words, env={"OPENAI_API_KEY": at.key, "HF_HUB_OFFLINE": "1"})
        newest = max(home.rglob("results_*.json"), key=lambda path: path.stat().st_mtime_ns)
        found: dict[str, Any] = json.loads(newest.read_text())["results"]
        return found

    def token_ids() -> None:
        assert 0 <= results("choice,generate", "completions", "completions")["choice"]["acc,none"] <= 1

    def chat() -> None:
        assert "generate" in results("generate", "chat-completions", "chat/completions", "--apply_chat_template")

    return {"token_ids": token_ids, "chat": chat}


def locust(at: At) -> Checks:
    def no_failure() -> None:
        home = folder()
        (home / "locustfile.py").write_text(LOCUSTFILE.replace("KEY", at.key).replace("MODEL", at.name))
        words = ("--headless", "--users=8", "--spawn-rate=8", f"--host={at.url}", "--json")
        text = done("locust", *words, cwd=home)
        rows = json.loads(text[text.index("[") :])
        assert {row["name"] for row in rows} == {"/generate", "/result", "/v1/chat/completions"}
        assert sum(row["num_failures"] for row in rows) == 0

    return {"no_failure": no_failure}


def open_interpreter(at: At) -> Checks:
    from interpreter import OpenInterpreter

    code = "printf 'It rains.' > weather.txt && cat weather.txt"
    os.chdir(folder())

    def loop(step: Any, *, is_text: bool) -> None:
        client = OpenInterpreter(auto_run=True, offline=True, disable_telemetry=True)
        client.llm.model, client.llm.api_base, client.llm.api_key = f"openai/{at.name}", at.v1, at.key
        client.llm.supports_functions, client.llm.context_window, client.llm.max_tokens = not is_text, 30_000, 400
        at.follow(step, WET)
        assert client.chat(QUESTION, display=False)[-1]["content"].strip() == WET
        assert Path("weather.txt").read_text() == "It rains."
        assert "It rains." in at.heard()[-1]
        Path("weather.txt").unlink()

    call = {"name": "execute", "arguments": {"language": "shell", "code": code}}
    return {
        "functions": lambda: loop(call, is_text=False),
        "blocks_of_text": lambda: loop(f"```shell\n{code}\n```", is_text=True),
    }


def opencommit(at: At) -> Checks:
    subject = "fix(sky): make it blue"
    identity = {f"GIT_{role}_{part}": "me" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}

    def commit(provider: str, where: str) -> None:
        """The model reads the change, and its answer becomes the commit's subject."""
        at.follow(subject, marker="colour.txt")
        home = folder()
        (home / "colour.txt").write_text("The sky is blue.\n")
        env = {"HOME": str(home), "OCO_AI_PROVIDER": provider, "OCO_API_KEY": at.key, "OCO_API_URL": where, **identity}
        env |= {"OCO_MODEL": at.name, "OCO_API_CUSTOM_HEADERS": f'{{"Authorization": "Bearer {at.key}"}}'}
        for words in ("git init -q", "git add colour.txt", "oco --yes"):
            done(*words.split(), cwd=home, env=env | {"OCO_GITPUSH": "false"})
        assert done("git", "log", "--format=%s", cwd=home) == f"{subject}\n"
        assert "+The sky is blue." in at.heard()[-1]

    places = {"openai": at.v1, "ollama": at.url, "llamacpp": at.url}
    return {name: each(lambda name: commit(name, places[name]), name) for name in places}


def promptfoo(at: At) -> Checks:
    def evaluations() -> None:
        openai: Any = {"apiBaseUrl": at.v1, "apiKey": at.key}
        providers = [{"id": f"openai:{api}:{at.name}", "config": openai} for api in ("chat", "responses", "completion")]
        anthropic = {"apiBaseUrl": at.url, "apiKey": at.key, "max_tokens": 64}
        providers.append({"id": f"anthropic:messages:{at.name}", "config": anthropic})
        home = folder()
        tests = [{"assert": [{"type": "contains", "value": "rains"}]}]
        config = {"prompts": [QUESTION], "providers": providers, "tests": tests}
        (home / "promptfooconfig.yaml").write_text(json.dumps(config))
        env = {f"PROMPTFOO_DISABLE_{name}": "1" for name in ("TELEMETRY", "UPDATE", "REMOTE_GENERATION")}
        at.follow(ANSWER)
        words = ("promptfoo", "eval", "--no-cache", "--output", "results.json")
        done(*words, cwd=home, env=env | {"HOME": str(home)})
        results = json.loads((home / "results.json").read_text())["results"]["results"]
        assert [one["response"].get("output") for one in results] == [ANSWER] * len(providers), results

    return {"evaluations": evaluations}


def shell_gpt(at: At) -> Checks:
    home = folder()
    (home / "functions").mkdir()
    (home / "functions/weather.py").write_text(SHELL_FUNCTION)

    def sgpt(*words: str) -> str:
        env = {"HOME": str(home), "TMPDIR": str(home), "OPENAI_API_KEY": at.key, "API_BASE_URL": at.v1}
        env |= {"DEFAULT_MODEL": at.name, "OPENAI_FUNCTIONS_PATH": f"{home}/functions", "PRETTIFY_MARKDOWN": "false"}
        return done("sgpt", "--no-cache", "--no-interaction", *words, env=env).strip()

    def session() -> None:
        at.follow(ANSWER, WET)
        assert ANSWER in sgpt("--no-functions", "--chat", "weather", QUESTION)
        assert WET in sgpt("--no-functions", "--chat", "weather", "And now?")
        assert ANSWER in at.heard()[-1]

    def tool() -> None:
        at.calls(lambda: sgpt("--functions", QUESTION), call=CALL)

    return {"chat": lambda: at.answers(lambda: sgpt("--no-functions", QUESTION)), "session": session, "tool": tool}


# Client -> its checks, and the package whose version is printed.
CLIENTS: dict[str, tuple[Callable[[At], Checks], str]] = {
    "aiperf": (aiperf, "aiperf"),
    "guidellm": (guidellm, "guidellm"),
    "httpie": (httpie, "httpie"),
    "llm": (llm, "llm"),
    "lm-eval": (lm_eval, "lm_eval"),
    "locust": (locust, "locust"),
    "open-interpreter": (open_interpreter, "open-interpreter"),
    "opencommit": (opencommit, "opencommit"),
    "promptfoo": (promptfoo, "promptfoo"),
    "shell-gpt": (shell_gpt, "shell-gpt"),
}

if __name__ == "__main__":
    checks_of, package = CLIENTS[os.environ["SPLITFUSE_CLIENT"]]
    sys.exit(run(checks_of(At(sys.argv[1])), package))
