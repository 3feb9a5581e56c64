"""Many requests at once with asyncio: the server batches them. A full queue is waited for, as its Retry-After says."""

import asyncio

from splitfuse.client import APIError, AsyncClient, Result

ANIMALS = ("cat", "dog", "bird", "fox", "bear", "frog", "mouse", "duck")


async def tell(client: AsyncClient, animal: str) -> Result | None:
    """A story, or None if the server could not tell it."""
    try:
        return await client.generate(f"Once there was a little {animal}", max_tokens=24, seed=1)
    except APIError as error:
        print(f"{animal}: {error}")
        return None


async def main() -> None:
    """Print the stories in the order of the animals."""
    async with AsyncClient(timeout=120) as client:
        results = await asyncio.gather(*(tell(client, animal) for animal in ANIMALS))
    for animal, result in zip(ANIMALS, results, strict=True):
        if result is not None:
            print(f"{animal}: {result.text!r}")


asyncio.run(main())
