"""The reference of the HTTP interface as one page, which loads nothing from elsewhere."""

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 18%, transparent); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 0.92em ui-monospace, monospace; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; border-left: 3px solid var(--line); }
pre { margin: 0.4rem 0; padding-left: 0.8rem; }
section { border-top: 1px solid var(--line); padding: 0.9rem 0; }
h2 { font-size: 1.25rem; margin: 2rem 0 0.5rem; }
h3 { font-size: 1rem; margin: 0; font-weight: 600; }
h3 b { display: inline-block; min-width: 4.2rem; }
table { border-collapse: collapse; margin-top: 0.5rem; font-size: 0.92em; }
td:first-child code { overflow-wrap: normal; }
td { padding: 0.1rem 1.2rem 0.1rem 0; vertical-align: top; }
p { margin: 0.2rem 0; }
@media (max-width: 40rem) { td { display: block; } td + td { padding-left: 1rem; } }
"""


def reference_page(openapi: dict[str, Any]) -> str:
    """Return the page of an OpenAPI document."""
    info = openapi["info"]
    topics = "".join(_topic(openapi, tag) for tag in openapi["tags"])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(info['title'])}: HTTP</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(info['title'])}</h1>"
        f"<p>{escape(info.get('summary', ''))} For programs: <a href='/openapi.json'>OpenAPI</a>"
        " describes HTTP, and <a href='/asyncapi.json'>AsyncAPI</a> the bus.</p>"
        f"{topics}</body></html>"
    )


def _topic(openapi: dict[str, Any], tag: dict[str, Any]) -> str:
    operations = "".join(
        _operation(openapi, method, path, operation)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
        if operation["tags"] == [tag["name"]]
    )
    title = tag["name"].capitalize()
    return f"<h2>{escape(title)}</h2><p>{_prose(tag['description'])}</p>{operations}"


def _operation(openapi: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        _row(parameter["name"], parameter.get("schema", {}), parameter.get("description", ""))
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query"
    )
    for schema in _body_schemas(openapi, operation):
        rows += "".join(
            _row(name, field, field.get("description", ""))
            for name, field in schema.get("properties", {}).items()
        )
    table = f"<table>{rows}</table>" if rows else ""
    errors = " ".join(
        f"<b>{status}</b> {_prose(answer['description'])}"
        for status, answer in sorted(operation["responses"].items())
        if status not in ("200", "default")
    )
    return (
        f"<section><h3><b>{escape(method.upper())}</b><code>{escape(path)}</code></h3>"
        f"<p>{_prose(operation.get('summary', ''))}</p>{table}{_examples(operation)}"
        f"<p>{errors}</p></section>"
    )


def _body_schemas(openapi: dict[str, Any], operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the schemas of an operation's body."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = content.get("schema", {})
    for reference in schema.get("oneOf", [schema] if schema else []):
        yield openapi["components"]["schemas"][reference["$ref"].rpartition("/")[2]]


def _examples(operation: dict[str, Any]) -> str:
    """Return the examples of the answer, if it is JSON."""
    content = operation["responses"]["200"]["content"].get("application/json", {})
    return "".join(
        f"<pre>{escape(json.dumps(example['value'], ensure_ascii=False))}</pre>"
        for example in content.get("examples", {}).values()
    )


def _row(name: str, schema: dict[str, Any], description: str) -> str:
    alternatives = schema.get("anyOf", [schema])
    types = [alternative.get("type", "") for alternative in alternatives]
    choices = next(
        (alternative["enum"] for alternative in alternatives if "enum" in alternative), None
    )
    values = ", ".join(map(str, choices or ())) or " or ".join(
        kind for kind in types if kind and kind != "null"
    )
    if (default := schema.get("default")) is not None:
        values += f" (default {default if isinstance(default, str) else json.dumps(default)})"
    return (
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(values)}</td>"
        f"<td>{_prose(description)}</td></tr>"
    )


def _prose(text: str) -> str:
    """Return a text as HTML; what is between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
