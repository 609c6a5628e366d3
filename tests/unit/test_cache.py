"""What is remembered stays in its bounds and belongs to one at a time."""

from turnfold.cache import LRUCache, SessionCaches


def test_what_was_taken_is_nobody_elses_until_it_is_kept_again() -> None:
    lately: LRUCache[str, list[int]] = LRUCache(100)
    lately.put("a", [1], 10)

    assert lately.pop("a") == [1]
    assert lately.pop("a") is None


def test_what_was_not_kept_for_longest_goes_first() -> None:
    lately: LRUCache[str, int] = LRUCache(100)
    for number, key in enumerate(("a", "b", "c", "d", "a", "e")):
        lately.put(key, number, 25)

    assert [lately.pop(key) for key in "abcde"] == [4, None, 2, 3, 5]


def test_an_entry_that_was_read_stays_longer_than_one_that_was_not() -> None:
    cache: LRUCache[str, int] = LRUCache(100)
    for number, key in enumerate("abcd"):
        cache.put(key, number, 25)

    read = cache.get("a")
    cache.put("e", 4, 25)

    assert read == 0
    assert [cache.get(key) for key in "abcde"] == [0, None, 2, 3, 4]


def test_what_is_very_heavy_is_not_kept_and_pushes_nothing_out() -> None:
    lately: LRUCache[str, int] = LRUCache(100)
    lately.put("a", 1, 25)
    lately.put("b", 2, 26)

    assert (lately.pop("a"), lately.pop("b")) == (1, None)


def test_what_is_cached_of_a_session_is_found_in_every_cache_and_removed_alone() -> None:
    replies: LRUCache[tuple[int, str], str] = LRUCache(100)
    orders: LRUCache[int, str] = LRUCache(100)
    for sid in (1, 2, 3):
        replies.put((sid, "etag"), "text", 10)
    orders.put(4, "order", 10)
    caches = SessionCaches(replies, orders)

    found = caches.sessions()
    caches.remove({2, 4})

    assert found == {1, 2, 3, 4}
    assert caches.sessions() == {1, 3}
    assert replies.pop((3, "etag")) == "text"
    caches.clear()
    assert caches.sessions() == set()
