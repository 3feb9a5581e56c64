"""The OpenAPI document: FastAPI's, with the bodies that RequestModel reads and without FastAPI's own 422."""

from collections.abc import Iterable, Iterator

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from ...engine.checks import Schema
from .request_model import RequestModel

_REF = "#/components/schemas/{model}"
_NULLABLE_TEXT = {"type": ["string", "null"]}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string", "description": "The fault, and the way out."},
                "type": {"type": "string"},
                "param": _NULLABLE_TEXT | {"description": "The field at fault."},
                "code": _NULLABLE_TEXT,
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


def openapi_of(app: FastAPI, routes: Iterable[BaseRoute]) -> Schema:
    """Return the document of these routes, with the schemas of all bodies. It is built once, in 0.1 s."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            routes=app.routes,
            description="Every error has the form `Error`, whatever its status.",
        )
        documented = [route for route in routes if isinstance(route, APIRoute) and route.include_in_schema]
        models = {model: None for route in documented for model in _complete(document, route)}
        _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
        document["components"] = {"schemas": {"Error": _ERROR, **schemas.get("$defs", {})}}
        app.openapi_schema = document
    return app.openapi_schema


def _complete(document: Schema, route: APIRoute) -> list[type[RequestModel]]:
    """Complete the operations of a route, and return the models of its body."""
    models = list(_bodies(route.dependant))
    for method in route.methods or ():
        operation = document["paths"][route.path_format][method.lower()]
        if "HTTPValidationError" in str(operation["responses"].get("422")):
            del operation["responses"]["422"]
        for parameter in operation.get("parameters", ()):
            parameter["schema"] = _value_schema(parameter["schema"])
        for model in models:
            content = {"schema": {"$ref": _REF.format(model=model.__name__)}, "example": model.example}
            operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return models


def _bodies(dependant: Dependant) -> Iterator[type[RequestModel]]:
    """Yield the models whose `from_request` the route depends on."""
    for dependency in dependant.dependencies:
        model = getattr(dependency.call, "__self__", None)
        if isinstance(model, type) and issubclass(model, RequestModel):
            yield model


def _value_schema(schema: Schema) -> Schema:
    """Return the schema of a parameter's value: never null, and the parameter has the name and the description."""
    values: list[Schema] = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    own = {name: schema[name] for name in schema.keys() - {"anyOf", "title", "description"}}
    return own | (values or [{}])[0]
