"""Settings of a replica: the server's settings, except the ones that belong to one server alone."""

import dataclasses
import json

from ....engine.errors import ConfigError
from . import ReplicaSettings
from .placement import name_of

# Set by the supervisor for each replica, or not needed by replicas.
_OWN = ("host", "port", "replicas", "ray_address", "api_key_file", "admin_key_file")


def tags_of(settings: ReplicaSettings, count: int) -> dict[str, str]:
    """Return the beginning of each replica's ids, by name. No tag is a prefix of another."""
    return {name: f"{settings.id_tag}{name}-" for name in map(name_of, range(count))}


def check_replicas(settings: ReplicaSettings) -> None:
    """Raise ConfigError for settings that several servers cannot share."""
    if settings.has_durable_results and not settings.has_shared_results:
        raise ConfigError("--results FILE is one server's; replicas share their results: --results postgresql://…")
    for name in ("record", "results_url"):
        if getattr(settings, name):
            raise ConfigError(f"--{name.replace('_', '-')} is one server's and cannot be given with --replicas")


def config_of(settings: ReplicaSettings, *, tag: str, num_threads: int | None) -> str:
    """Build the replica's config file, as JSON, which is YAML. It holds the keys.

    `num_threads`: a replica's threads if the settings do not set them; None leaves the choice to the replica.
    """
    values = {
        field.name: value
        for field in dataclasses.fields(settings)
        if field.name not in _OWN and (value := getattr(settings, field.name)) != field.default
    }
    values |= {"id_tag": tag, "api_key": settings.keys, "admin_key": settings.admin_keys}
    if ":" not in settings.host:  # clients may call the supervisor by this name; addresses are allowed anyway
        values["allowed_hosts"] = (*settings.allowed_hosts, settings.host)
    return json.dumps({"num_threads": num_threads} | values)
