"""Registry of model families: class and table row of each architecture name. A family is imported when it is used.

`python -m splitfuse.engine.execution.models.registry` prints the table of server/docs/models.md.
--rope-scaling is put into a model's fields here, so that the model serves more positions than it was made for.
"""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import ConfigError
from ...extension import declared
from ...formats.json_file import positive_number, read_json
from .config import ModelConfig

if TYPE_CHECKING:
    from .decoder import Decoder

_ORIGINAL = "original_max_position_embeddings"
_KINDS = ("linear", "llama3", "yarn")
_WHY = {
    "dynamic": "dynamic turns keys by the length of their request, so none could be cached; use yarn or linear",
    "longrope": "longrope's factors come with a model's own files; use yarn or linear",
}
_KEPT = ("rope_theta", "partial_rotary_factor")  # fields of a model's own rope that scaling leaves


def scaled(fields: Mapping[str, Any], scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Return a family's normalized fields with this scaling in place of their own, and with the longer context.

    `factor` times the original length is the new one. Raises ConfigError.
    """
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind not in _KINDS:
        raise ConfigError(_WHY.get(str(kind), f"rope_type {kind!r} is not known; known: {', '.join(_KINDS)}"))
    own = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if any(isinstance(value, Mapping) for value in own.values()):
        raise ConfigError("this model has several rotary embeddings, which are not scaled together")
    if fields.get("partial_rotary_factor") == 0.0:
        raise ConfigError("this model learned its positions, so there are no more of them")
    names = (scaling, own, fields)
    original = next((n[_ORIGINAL] for n in names if n.get(_ORIGINAL)), fields["max_position_embeddings"])
    length = int(positive_number(scaling, "factor") * positive_number({_ORIGINAL: original}, _ORIGINAL))
    kept = {name: own[name] for name in _KEPT if name in own}
    parameters = {**kept, _ORIGINAL: original, **scaling, "rope_type": kind}
    return {**fields, "rope_scaling": parameters, "max_position_embeddings": length}


class Family(NamedTuple):
    """Row of families.json: the module of a family's class, its row in server/docs/models.md, its config.json."""

    module: str
    name: str
    example: str  # an id on the hub
    notes: str = ""
    defaults: Mapping[str, Any] = {}  # fields that config.json may lack, as transformers has them
    copies: Mapping[str, str] = {}  # a field's name here -> in the family's config.json
    fixed: Mapping[str, Any] = {}  # values whatever config.json says

    def complete(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return config.json with the row's fields. Raises KeyError."""
        fields = {**self.defaults, **raw}
        return {**fields, **{own: fields[theirs] for own, theirs in self.copies.items()}, **self.fixed}


# Keys are the values of `architectures` in config.json.
MODELS = {name: Family(**row) for name, row in read_json(Path(__file__).with_name("families.json")).items()}

# Names in published files that transformers spells otherwise.
_OTHER_NAMES = {"PhiMoEForCausalLM": "PhimoeForCausalLM"}


def model_class(architecture: str, *, model_type: str = "", impl: str = "native") -> "type[Decoder]":
    """Import the class for config.json's architecture. Raises ConfigError that names the nearest known one."""
    if impl == "transformers":
        return import_module(".through_transformers", __package__).model_class()  # type: ignore[no-any-return]
    if architecture not in MODELS:
        if (extra := _class_of_extension(architecture)) is not None:
            return extra
        nearest = _nearest(architecture, model_type)
        hint = f"; nearest by name: {MODELS[nearest].name} ({nearest})" if nearest else ""
        raise ConfigError(
            f"architecture {architecture!r} is not known{hint}; "
            f"`splitfuse models --supported` lists the {len(MODELS)} that are"
        )
    module = import_module(f".{MODELS[architecture].module}", __package__)
    found: type[Decoder] = getattr(module, architecture)
    return found


def _class_of_extension(architecture: str) -> "type[Decoder] | None":
    """Return the class that an extension has for an architecture, such as one that pools; None if none has one."""
    finders = (extension.load(extension.decoder) for extension in declared() if extension.decoder is not None)
    return next((found for find in finders if (found := find(architecture)) is not None), None)


def _nearest(architecture: str, model_type: str) -> str | None:
    """Return the known architecture whose name is nearest to one of these; None if none is near."""
    names = {_stem(known): known for known in MODELS}
    for name in (model_type.lower().replace("_", ""), _stem(architecture)):
        if close := get_close_matches(name, names, n=1):
            return names[close[0]]
    return None


def _stem(architecture: str) -> str:
    """Return the name without the suffix, which would make all alike."""
    return architecture.split("For")[0].removesuffix("LMHeadModel").lower().replace("_", "")


def read_model_config(
    folder: Path, *, rope_scaling: Mapping[str, Any] | None = None, impl: str = "auto"
) -> ModelConfig:
    """Read the shape of the model in this folder or GGUF file, for --model-impl `impl`. Raises ConfigError.

    A folder's is in config.json, the end tokens in generation_config.json. Some configs name no dtype: then the
    weights' dtype counts, as in transformers. `rope_scaling` replaces the model's own.
    """
    if folder.is_file():
        from ...formats.gguf.config_fields import read_config_fields  # here: most models are folders

        fields = read_config_fields(folder)
        return parse_model_config(fields, generation={}, source=str(folder), rope_scaling=rope_scaling, impl=impl)
    if not (folder / "config.json").exists():
        from ...formats.missing_model import other_format, tokenizer_only  # here: most folders have one

        if what := other_format(folder) or tokenizer_only(folder):
            raise ConfigError(what)
    path = folder / "generation_config.json"
    generation = read_json(path) if path.exists() else {}
    source = folder / "config.json"
    raw = read_json(source)
    if not raw.get("quantization_config") and (path := folder / "hf_quant_config.json").exists():
        declared = read_json(path).get("quantization")  # ModelOpt's older checkpoints have it here alone
        raw["quantization_config"] = {"quant_method": "modelopt", **(declared if isinstance(declared, dict) else {})}
    text = raw.get("text_config")
    if not any(part.get(name) for part in (raw, text or {}) for name in ("dtype", "torch_dtype")):
        from ...formats.tensor_entry import stored_dtype  # here: it imports torch

        raw["dtype"] = stored_dtype(folder)
    return parse_model_config(raw, generation=generation, source=str(source), rope_scaling=rope_scaling, impl=impl)


def parse_model_config(
    raw: dict[str, Any],
    *,
    generation: dict[str, Any],
    source: str = "config.json",
    rope_scaling: Mapping[str, Any] | None = None,
    impl: str = "native",
) -> ModelConfig:
    """Parse `raw`, the config.json of any known family. Raises ConfigError that names `source`."""
    try:
        architecture = str((raw.get("architectures") or ["(none named)"])[0])
        if architecture in _OTHER_NAMES:
            architecture = _OTHER_NAMES[architecture]
            raw = raw | {"architectures": [architecture]}
        if architecture not in MODELS and impl != "transformers" and _class_of_extension(architecture) is None:
            from .wrappers import text_part  # here: most models are text alone

            if (text := text_part(raw, MODELS)) is not None:
                raw, architecture = text, text["architectures"][0]
        if impl == "transformers" or (
            impl == "auto" and architecture not in MODELS and _class_of_extension(architecture) is None
        ):
            through = import_module(".through_transformers", __package__)
            if (parsed := through.parse(raw, generation, source=source, impl=impl)) is not None:
                if rope_scaling is not None:
                    raise ConfigError(f"--rope-scaling is not built for {architecture}; leave it out")
                return parsed  # type: ignore[no-any-return]
        family = model_class(architecture, model_type=str(raw.get("model_type") or ""))
        row = next((MODELS[base.__name__] for base in family.__mro__ if base.__name__ in MODELS), None)
        fields = family.normalize_config(raw if row is None else row.complete(raw))
        if rope_scaling is not None:
            source = f"{source} with --rope-scaling"
            fields = scaled(fields, rope_scaling)
        config = ModelConfig.from_fields(fields, generation)
        return replace(config, layer_states=family.layer_states(config))
    except ConfigError as exc:
        raise ConfigError(f"{source}: {exc}") from exc
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as exc:
        raise ConfigError(f"{source}: a field is missing or of the wrong kind ({type(exc).__name__}: {exc})") from exc


def families_table() -> str:
    """Return the table of families for server/docs/models.md."""
    rows = sorted(MODELS.items(), key=lambda item: item[1].name.lower())
    lines = [f"| {row.name} | `{architecture}` | `{row.example}` | {row.notes} |" for architecture, row in rows]
    return "\n".join(["| family | `architectures` | for example | |", "|---|---|---|---|", *lines])


if __name__ == "__main__":
    print(families_table())
