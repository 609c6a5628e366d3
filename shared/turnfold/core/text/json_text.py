"""Write JSON as windows show it."""

import json


def json_text(value: object) -> str:
    """Serialize to compact JSON that UTF-8 can encode; lone surrogates are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text
