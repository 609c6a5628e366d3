"""What a block holds when a request names a query of its own while an agent works."""

import pytest

from tests.contract.query.test_recall import LINE, Asker, block_of, working
from tests.store_fixtures import Stores


@pytest.mark.proves("F2", "W14")
async def test_a_query_of_its_own_is_what_the_block_is_for(stores: Stores) -> None:
    """Within a turn, lines that the turn may need took all of the block, whatever was asked."""
    told = "The lantern_shelf takes a store_number."
    await working(stores, request="Go on.", is_named_to=2, summarized=told)
    asker = Asker(stores)

    async def block(**query: str) -> str:
        return block_of(await asker.told(max_tokens=1_500, recall={"tokens": 120, **query}))

    plain = await block()

    assert LINE not in plain
    assert await block(query="Go  on.") == plain
    assert LINE in await block(query="Where is lantern_shelf?")
