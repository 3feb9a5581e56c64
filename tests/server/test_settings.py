"""Sources of settings and which of them wins; a mistake is named."""

import argparse
import dataclasses
import re
from pathlib import Path

import pytest
from tables import table

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.config.foreign_options import FOREIGN_OPTIONS
from splitfuse.engine.config.setting import settings_of
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.extras.bench.quality import quality_parser
from splitfuse.server.commands.parsers.tree import build_parser
from splitfuse.server.commands.setting_flags import add_flags
from splitfuse.server.commands.settings_sources import ALL_FIELDS, resolve
from splitfuse.server.http.keys import digest
from splitfuse.server.settings import Settings

SERVER = Path(__file__).parents[2] / "server"


def flag(name):
    return settings_of(Settings)[name].flag


def parse(*argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    add_flags(parser, ALL_FIELDS)
    return vars(parser.parse_args(argv))


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "settings.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_defaults_are_the_contracts():
    settings = resolve({}, {})
    assert (settings.host, settings.port, settings.result_ttl, settings.max_body_bytes) == (
        "127.0.0.1",
        8000,
        3600,
        2 * 2**20,
    )
    assert (settings.drain_timeout, settings.stream_interval, settings.metrics_prefix) == (30, 1, "splitfuse:")
    assert settings.engine_config() == EngineConfig(scheduling_policy="fcfs")


def test_the_contracts_flags():
    parser = argparse.ArgumentParser()
    add_flags(parser, ALL_FIELDS)
    assert set(table(__file__, "flags of the contract")) <= set(parser._option_string_actions)


def test_command_line_over_environment_over_file_over_default(write):
    path = write("port: 1\nmax-num-seqs: 2\nseed: 3\nhost: file")
    environ = {"SPLITFUSE_PORT": "10", "SPLITFUSE_MAX_NUM_SEQS": "20", "SPLITFUSE_CONFIG": path}
    settings = resolve(parse("--port", "100"), environ)
    assert (settings.port, settings.max_num_seqs, settings.seed, settings.host) == (100, 20, 3, "file")
    assert settings.block_size == 16
    other = write("port: 5")
    assert resolve(parse("--config", other), {"SPLITFUSE_CONFIG": "/nowhere"}).port == 5


def test_every_field_has_a_flag_a_variable_and_help():
    parser = argparse.ArgumentParser()
    add_flags(parser, ALL_FIELDS)
    text = " ".join(parser.format_help().split())
    for field in dataclasses.fields(Settings):
        setting = settings_of(Settings)[field.name]
        assert setting.help
        if field.name != "model":
            assert setting.flag == "--" + field.name.replace("_", "-")
            assert f"{setting.flag} " in text
            assert f"[SPLITFUSE_{field.name.upper()}" in text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ngram", {"model": "ngram"}),
        ("/my/draft", {"model": "/my/draft"}),
        ('{"method": "ngram", "num_speculative_tokens": 4}', {"method": "ngram", "num_speculative_tokens": 4}),
    ],
)
def test_speculation_has_a_short_form(text, value, write):
    assert resolve(parse("--speculative-config", text), {}).speculative_config == value
    assert resolve({}, {"SPLITFUSE_SPECULATIVE_CONFIG": text}).speculative_config == value
    assert resolve({"config": write(f"speculative_config: {text}")}, {}).speculative_config == value


@pytest.mark.parametrize("source", ["flag", "env", "file"])
def test_every_type_from_every_source(source, write):
    texts = {
        "port": ("9000", 9000),
        "result_ttl": ("60", 60.0),
        "drain_timeout": ("1.5", 1.5),
        "dtype": ("float32", "float32"),
        "kv_cache_memory_bytes": ("2GiB", 2 * 2**30),
        "max_body_bytes": ("1.5 MiB", 1572864),
        "enable_prefix_caching": ("false", False),
        "api_key": ("k1", ("k1",)),
    }
    if source == "flag":
        argv = [
            word for name, (text, _) in texts.items() if name != "enable_prefix_caching" for word in (flag(name), text)
        ]
        settings = resolve(parse(*argv, "--no-enable-prefix-caching"), {})
    elif source == "env":
        settings = resolve({}, {f"SPLITFUSE_{name.upper()}": text for name, (text, _) in texts.items()})
    else:
        path = write("".join(f"{name}: {text}\n" for name, (text, _) in texts.items()))
        settings = resolve({"config": path}, {})
    for name, (_, value) in texts.items():
        assert getattr(settings, name) == value
        assert type(getattr(settings, name)) is type(value)


def test_many_keys(write):
    assert resolve(parse("--api-key", "a", "--api-key", "b"), {"SPLITFUSE_API_KEY": "c"}).api_key == ("a", "b")
    assert resolve({}, {"SPLITFUSE_API_KEY": "a, b"}).api_key == ("a", "b")
    assert resolve({"config": write("api_key: [a, b]")}, {}).api_key == ("a", "b")


def test_keys_of_a_file_are_added(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst\n\n  second  \n#third\n")
    settings = resolve(parse("--api-key", "a", "--api-key-file", str(path)), {})
    assert settings.keys == ("a", "first", "second")
    assert resolve({}, {"SPLITFUSE_API_KEY_FILE": str(path)}).keys == ("first", "second")
    assert "first" not in repr(settings)
    weights = {"first": 2.0, "team": 3.0}
    fair = Settings(api_key_file=str(path), scheduling_policy="fair", tenant_weights=weights).engine_config()
    assert fair.tenant_weights == {digest("first"): 2.0, "team": 3.0}


@pytest.mark.parametrize(
    ("keys", "flags", "policy"),
    [
        ((), (), "fcfs"),
        (("a",), (), "fcfs"),
        (("a", "a"), (), "fcfs"),
        (("a", "b"), (), "fair"),
        (("a", "b"), ("--scheduling-policy", "fcfs"), "fcfs"),
        ((), ("--scheduling-policy", "fair"), "fair"),
    ],
)
def test_several_keys_share_fairly_by_default(keys: tuple[str, ...], flags: tuple[str, ...], policy: str) -> None:
    settings = resolve(parse(*flags, *(part for key in keys for part in ("--api-key", key))), {})
    assert settings.engine_config().scheduling_policy == policy
    assert resolve(parse(*flags), {}).engine_config().scheduling_policy == (policy if flags else "fcfs")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "keys: cannot be read \\(No such file"),
        (b"# none\n \n", "holds no key: write one per line, or leave the flag out"),
        ("clé-secrète".encode(), "must be visible ASCII characters"),
    ],
)
def test_a_key_file_without_keys_is_refused(content, message, tmp_path):
    """Else the server would be open to all."""
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as info:
        Settings(api_key_file=str(path))
    assert "secr" not in str(info.value)


@pytest.mark.parametrize("name", ["allowed_hosts", "allowed_origins"])
def test_lists_with_commas(name, write):
    texts = {"allowed_hosts": ["a.example", "b"], "allowed_origins": ["https://a.example", "http://localhost:3000"]}[
        name
    ]
    joined = ", ".join(texts).upper()
    for settings in (
        resolve(parse(flag(name), joined), {}),
        resolve(parse(flag(name), texts[0], flag(name), texts[1]), {}),
        resolve({}, {f"SPLITFUSE_{name.upper()}": joined}),
        resolve({"config": write(f"{name}: '{joined}'")}, {}),
        resolve({"config": write(f"{name}: {texts}")}, {}),
    ):
        assert getattr(settings, name.removeprefix("allowed_")) == tuple(texts)
    assert getattr(resolve(parse(flag(name), "*"), {}), name) == ("*",)


@pytest.mark.parametrize(("args", "environ", "file", "message"), table(__file__, "mistakes"))
def test_mistakes_are_named(args, environ, file, message, write):
    given = parse(*args)
    if file:
        given["config"] = write(file)
    with pytest.raises(ConfigError, match=message.replace("[", r"\[").replace("?", r"\?")):
        resolve(given, environ)


def test_an_empty_file_changes_nothing(write):
    assert resolve({"config": write("")}, {}) == Settings()


def test_variables_of_other_programs_are_ignored():
    """Kubernetes' service variables above all: a service called splitfuse makes SPLITFUSE_PORT=tcp://…"""
    environ = {
        "SPLITFUSE_PORT": "tcp://10.0.0.1:8000",
        "SPLITFUSE_SERVICE_HOST": "10.0.0.1",
        "SPLITFUSE_SERVICE_PORT": "8000",
        "SPLITFUSE_SERVICE_PORT_HTTP": "8000",
        "SPLITFUSE_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "SPLITFUSE_PORT_8000_TCP_ADDR": "10.0.0.1",
        "SPLITFUSE_BASE_URL": "http://localhost",
        "SPLITFUSE_METRICS_KEY": "k",
        "SPLITFUSE_NATIVE": "0",
        "SPLITFUSE_TEST_MODELS": "m",
        "SPLITFUSE": "1",
        "PORT": "9",
    }
    assert resolve({}, environ) == Settings()


def test_reading_settings_imports_neither_torch_nor_fastapi():
    import subprocess
    import sys

    code = (
        "import sys; import splitfuse.server.commands.command_line, splitfuse.server.commands.settings_sources\n"
        "heavy = {'torch', 'fastapi', 'pydantic', 'transformers', 'uvicorn', 'yaml', 'jinja2'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_no_document_for_users_names_a_flag_that_is_gone():
    pages = [SERVER / "API.md", *(page for page in (SERVER / "docs").glob("*.md") if page.stem != "extending")]
    named = re.findall(r"(?<![\w-])--[a-z][\w-]+", "\n".join(page.read_text() for page in pages))
    parser = argparse.ArgumentParser()
    add_flags(parser, ALL_FIELDS)
    parsers = (parser, quality_parser(), *build_parser([])[1].values())
    known = {option for parser in parsers for action in parser._actions for option in action.option_strings}
    gone = {word.replace("_", "-") for word in named} - known - FOREIGN_OPTIONS.keys()
    assert gone <= {"--goodput", "--target", "--extra-index-url", "--torch-backend"}, "options of other programs"
