"""Calls that a provider runs itself are no calls of the client's tools."""

from typing import Any

from turnfold.shapes import chat_from_responses


def search(execution: str) -> list[dict[str, Any]]:
    ids = {"call_id": "s1", "execution": execution, "status": "completed"}
    tools = [{"type": "function", "name": "lookup", "parameters": {}}]
    return [
        {"type": "tool_search_call", "id": "c", "arguments": {"query": "orders"}, **ids},
        {"type": "tool_search_output", "id": "o", "tools": tools, **ids},
    ]


def test_a_search_of_the_provider_waits_for_no_result() -> None:
    [said] = chat_from_responses(search("server"))

    assert said["role"] == "assistant"
    assert "tool_calls" not in said
    assert "lookup" in str(said["content"])


def test_the_tools_that_a_client_found_are_the_result_of_its_search() -> None:
    called, result = chat_from_responses(search("client"))

    assert [call["id"] for call in called["tool_calls"]] == ["s1"]
    assert result["tool_call_id"] == "s1"
    assert "lookup" in result["content"]
