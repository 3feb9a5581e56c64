"""What a replica gets of the settings: the same, but for what a server has for itself alone."""

import dataclasses
import json

from ....engine.errors import ConfigError
from .placement import name_of
from .settings import ReplicaSettings

# Each replica is told these by the supervisor, or needs none.
_OWN = ("host", "port", "replicas", "ray_address", "api_key_file")


def tags_of(settings: ReplicaSettings, count: int) -> dict[str, str]:
    """What the ids of each replica begin with, by its name. No tag begins another."""
    return {name: f"{settings.id_tag}{name}-" for name in map(name_of, range(count))}


def check_replicas(settings: ReplicaSettings) -> None:
    """Raise ConfigError for settings that several servers cannot share."""
    if settings.has_durable_results and not settings.has_shared_results:
        raise ConfigError("--results FILE is one server's; replicas share their results: --results postgresql://…")
    for name in ("record", "results_url"):
        if getattr(settings, name):
            raise ConfigError(f"--{name.replace('_', '-')} is one server's and cannot be given with --replicas")


def config_of(settings: ReplicaSettings, *, tag: str, num_threads: int | None) -> str:
    """The replica's config file, as JSON, which is YAML. It holds the keys.

    `num_threads`: of each replica where the settings say nothing; None leaves that to the replica.
    """
    values = {
        field.name: value
        for field in dataclasses.fields(settings)
        if field.name not in _OWN and (value := getattr(settings, field.name)) != field.default
    }
    values |= {"id_tag": tag, "api_key": settings.keys}
    if ":" not in settings.host:  # a name by which clients may call it; addresses are allowed anyway
        values["allowed_hosts"] = (*settings.allowed_hosts, settings.host)
    return json.dumps({"num_threads": num_threads} | values)
