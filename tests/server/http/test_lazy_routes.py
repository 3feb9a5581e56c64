"""LazyRoutes: a router that cannot be imported costs its own routes alone."""

from dataclasses import dataclass

import httpx
import pytest
from fastapi import APIRouter

from splitfuse.engine.errors import UnavailableError
from splitfuse.server.app import build_app
from splitfuse.server.http.lazy_routes import LazyRoutes
from splitfuse.server.server_settings import ServerSettings


@dataclass
class Router:
    """Router of one path, whose first import may fail."""

    path: str
    failure: Exception | None = None

    @property
    def folder(self) -> str:
        return "server/extras" + self.path

    def owns(self, path: str) -> bool:
        return path == self.path

    def load_router(self) -> APIRouter:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        router = APIRouter()
        router.add_api_route(self.path, lambda: "fine")
        return router


async def answers(routers: list[Router], *paths: str) -> list[tuple[int, str]]:
    app = build_app(ServerSettings(model="demo"))
    app.state.lazy_routes = LazyRoutes(app, routers)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        responses = [await client.get(path) for path in paths]
    return [(response.status_code, response.text) for response in responses]


@pytest.mark.parametrize("failure", [ImportError("no"), AttributeError("router"), SyntaxError("(")])
async def test_one_that_cannot_be_imported_is_left_out_aloud(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    routers = [Router("/bad", failure), Router("/good")]
    unknown, document, bad, good = await answers(routers, "/nowhere", "/openapi.json", "/bad", "/good")
    assert (unknown[0], document[0], good) == (404, 200, (200, '"fine"'))
    assert bad[0] == 404
    assert "server/extras/bad cannot be loaded" in bad[1]
    assert [record.getMessage() for record in caplog.records] == [
        "server/extras/bad is not served: it cannot be loaded"
    ]


async def test_alone_it_is_a_404_with_the_name_of_its_folder() -> None:
    [bad] = await answers([Router("/bad", ImportError("no"))], "/bad")
    assert bad[0] == 404
    assert "server/extras/bad" in bad[1]


async def test_a_process_without_descriptors_loads_it_later() -> None:
    early, late = await answers([Router("/late", UnavailableError("too many files"))], "/late", "/late")
    assert (early[0], late[0]) == (503, 200)
