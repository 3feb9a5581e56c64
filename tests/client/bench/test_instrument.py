"""The server's own histogram gives the median gap of what came between two looks."""

import httpx
import pytest

from splitfuse.client.bench.instrument import median_gap_ms, server_gaps

NAME = "vllm:inter_token_latency_seconds"


def metrics(*counts: int) -> str:
    """Return a page with two models' histograms of equal counts."""
    bounds = ("0.01", "0.025", "0.05", "+Inf")
    lines = [
        f'{NAME}_bucket{{model_name="{model}",le="{bound}"}} {count}'
        for model in ("a", "b")
        for bound, count in zip(bounds, counts, strict=True)
    ]
    return "\n".join([f"# TYPE {NAME} histogram", *lines, f'{NAME}_sum{{model_name="a"}} 7.5'])


async def look(text: str, status: int = 200) -> dict[float, float]:
    transport = httpx.MockTransport(lambda request: httpx.Response(status, text=text))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        return dict(await server_gaps(http))


async def test_the_median_lies_between_two_looks() -> None:
    before, after = await look(metrics(100, 100, 100, 100)), await look(metrics(100, 104, 110, 110))
    assert median_gap_ms(before, after) == pytest.approx(25 + 25 * 1 / 6)
    assert median_gap_ms(after, after) is None
    assert median_gap_ms({}, await look(metrics(0, 0, 0, 5))) is None, "beyond the last bound nothing is known"
    assert median_gap_ms({}, await look("not found", 404)) is None
