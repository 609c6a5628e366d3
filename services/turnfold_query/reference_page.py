"""The reference of the HTTP interface as one page that needs nothing from elsewhere."""

from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 18%, transparent); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code { font: 0.92em ui-monospace, monospace; overflow-wrap: anywhere; }
section { border-top: 1px solid var(--line); padding: 0.9rem 0; }
h2 { font-size: 1rem; margin: 0; font-weight: 600; }
h2 b { display: inline-block; min-width: 4.2rem; }
table { border-collapse: collapse; margin-top: 0.5rem; font-size: 0.92em; }
td { padding: 0.1rem 1.2rem 0.1rem 0; vertical-align: top; }
p { margin: 0.2rem 0; }
"""


def reference_page(openapi: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    info = openapi["info"]
    operations = "".join(
        _operation(method, path, operation)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(info['title'])}: HTTP</title><style>{_STYLE}</style></head><body><h1>{escape(info['title'])}</h1>"
        f"<p>{escape(info.get('summary', ''))} For machines: <a href='/openapi.json'>OpenAPI</a> for HTTP, "
        f"<a href='/asyncapi.json'>AsyncAPI</a> for the bus.</p>{operations}</body></html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        _parameter(parameter)
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query"
    )
    table = f"<table>{rows}</table>" if rows else ""
    return (
        f"<section><h2><b>{escape(method.upper())}</b><code>{escape(path)}</code></h2><p>{escape(operation.get('summary', ''))}</p>"
        f"{table}</section>"
    )


def _parameter(parameter: dict[str, Any]) -> str:
    schema = parameter.get("schema", {})
    kinds = [one.get("type", "") for one in schema.get("anyOf", [schema])]
    kind = " or ".join(one for one in kinds if one and one != "null")
    choices = schema.get("enum") or next(
        (one["enum"] for one in schema.get("anyOf", ()) if "enum" in one), None
    )
    default = schema.get("default")
    told = ", ".join(map(str, choices)) if choices else kind
    if default is not None:
        told += f" (default {default})"
    return f"<tr><td><code>{escape(parameter['name'])}</code></td><td>{escape(told)}</td><td>{escape(parameter.get('description', ''))}</td></tr>"
