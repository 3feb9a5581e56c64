"""Handlers of the commands: from parsed arguments to a call, whose modules are imported then."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ...engine.config.named_models import default_model
from ..extension import Extensions
from ..process.stop_signals import StopSignals
from ..server_settings import ServerSettings
from .settings_sources import REPLICA_VARIABLE, resolve, resolve_sources


def serve(args: argparse.Namespace, *, signals: StopSignals) -> int:
    from ..process.deferred_import import defer_meta_kernels

    settings = _settings_with_model(args)
    if settings.load_format != "dummy":  # random weights are drawn by what the meta kernels register
        defer_meta_kernels()
    if (serve_otherwise := Extensions(settings).first("serve")) is not None:
        serve_otherwise(settings, signals)
    else:
        from ..process.gc_policy import collecting_nothing

        with collecting_nothing():
            from ..process.start import serve

            serve(settings, signals, replica=os.environ.get(REPLICA_VARIABLE))
    return 0


def generate(args: argparse.Namespace) -> int:
    from .generate import generate, generate_at, read_prompt

    prompt = read_prompt(args.prompt, model=args.model)
    fields = _sampling_fields(args)
    if args.url is not None:
        return generate_at(args.url, api_key=args.client_key, prompt=prompt, fields=fields)
    return generate(_settings_with_model(args), prompt=prompt, fields=fields)


def embed(args: argparse.Namespace) -> int:
    from .terminal.embedding import embed

    options = {"source": args.input, "target": args.output, "dimensions": args.dimensions, "truncate": args.truncate}
    return embed(_settings_with_model(args), **options)


def chat(args: argparse.Namespace) -> int:
    from .chat import ChatOptions, chat, chat_at
    from .terminal.remote_chat import server_of

    options = ChatOptions(_sampling_fields(args), args.system, args.verbose, args.plain)
    if args.url is not None:
        return chat_at(args.url, options, api_key=args.client_key)
    resolved = resolve_sources(vars(args), os.environ)
    settings = _with_model(resolved.settings)
    changes = {name for name, source in resolved.sources.items() if source.kind == "flag"} - {"model"}
    # A flag of the engine asks for an engine of one's own.
    if not changes and (url := server_of(settings.model_name, port=settings.port, api_key=args.client_key)) is not None:
        print(f"{settings.model_name} runs at {url}, so the model is not loaded again", file=sys.stderr)
        return chat_at(url, options, api_key=args.client_key)
    return chat(settings, options)


def verify(args: argparse.Namespace) -> int:
    from .verify import read_receipt, show, verify, verify_at

    receipt = read_receipt(args.file)
    if args.url is not None:
        verdict = verify_at(args.url, receipt, api_key=args.client_key)
    else:
        verdict = verify(_settings_with_model(args), receipt)
    return show(verdict, receipt, as_json=args.as_json)


def _imported(target: str, *names: str, same: str = "", **renamed: str) -> Callable[[argparse.Namespace], int]:
    """Return a handler that imports module:function and calls it with these arguments of the command line.

    `names` are given by position, those of `same` by their own keywords, `renamed` by others.
    """
    module, _, function = target.partition(":")
    keywords = {**dict(zip(same.split(), same.split(), strict=True)), **renamed}

    def run(args: argparse.Namespace) -> int:
        given = {keyword: getattr(args, name) for keyword, name in keywords.items()}
        code: int = getattr(import_module(module, __package__), function)(*(getattr(args, n) for n in names), **given)
        return code

    return run


agents = _imported(".agents:show", "name", same="url", api_key="client_key")
bisect = _imported(
    ".bisect:run", "a", "b", same="settings_a settings_b prompts as_json max_tokens tolerance", api_key="client_key"
)
doctor = _imported(".doctor:doctor", "model", same="as_json", builds="build")
fork = _imported(
    ".fork:run", "seq_id", same="url as_json output at append_text max_tokens temperature seed", api_key="client_key"
)
inspect = _imported(".inspect:inspect", "model", same="as_json")
plot = _imported("...engine.extras.simulation.plot:run", "files", "output")
ps = _imported(".model_store.running_server:print_servers", same="api_key as_json")
pull = _imported(".model_store.pull:pull", "model")
replay = _imported("...engine.extras.simulation.replay:run", "file")
results = _imported(".results_backup:back_up", "file", same="url", api_key="client_key")
load = unload = _imported(".model_turn:ask", "command", "name", same="url", api_key="client_key")
rm = _imported(".model_store.remove:remove", "model", is_sure="yes")


def plan(args: argparse.Namespace) -> int:
    from .plan import plan

    config = _settings_with_model(args).engine_config()
    return plan(config, memory=args.memory, num_ranks=config.tensor_parallel_size)


def config(args: argparse.Namespace) -> int:
    from .config import decided, report

    resolved = resolve_sources(vars(args), os.environ)
    return report(decided(resolved) if args.resolved else resolved, as_json=args.as_json)


def models(args: argparse.Namespace) -> int:
    from .model_store.model_table import print_models, print_supported

    return print_supported() if args.supported else print_models(as_json=args.as_json)


def simulate(args: argparse.Namespace) -> int:
    from .simulate import run

    return run(_settings(args).engine_config(), args)


def _settings(args: argparse.Namespace) -> ServerSettings:
    return resolve(vars(args), os.environ)


def _settings_with_model(args: argparse.Namespace) -> ServerSettings:
    return _with_model(_settings(args))


def _with_model(settings: ServerSettings) -> ServerSettings:
    return settings if settings.model is not None else dataclasses.replace(settings, model=default_model())


def _sampling_fields(args: argparse.Namespace) -> dict[str, Any]:
    from ...engine.core.sampling_params import SamplingParams

    fields = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    SamplingParams.from_fields(fields)  # a wrong value is refused before the model is loaded
    return fields
