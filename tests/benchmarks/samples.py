"""Texts of each class that a heuristic counts differently: out of recorded conversations where there are some, else our own."""

import gzip
import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from tests.histories import data_directory

CHARACTERS = 300_000
"""So much of each class is enough."""
FENCED = re.compile(
    r"```(?:python|py|typescript|ts|javascript|js|bash|sh|java|go|rust|c|cpp)\n(.+?)```", re.DOTALL
)
TABLE = re.compile(r"(?:^\|.*\|[ ]*\n){4,}", re.MULTILINE)
BASE64 = re.compile(r"base64,([A-Za-z0-9+/=]{1000,})")
LANGUAGES = {"en": "english", "zh": "chinese", "ja": "japanese"}
PROSE = re.compile(r"^(chat|zh|ja)-")


def samples() -> dict[str, tuple[str, str]]:
    """A text of each class and where it is from; what the recordings lack is our own."""
    recorded = {name: ("recorded", text) for name, text in _recorded().items() if len(text) > 5_000}
    return {name: recorded.get(name, ("own", text)) for name, text in own().items()}


def _recorded() -> dict[str, str]:
    found: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for file in sorted(folder.glob("*.jsonl.gz") if (folder := data_directory()) else ()):
        of_this_file: dict[str, int] = {}
        for name, text in _pieces(file):
            # No file is to speak for a class alone.
            if sizes.get(name, 0) < CHARACTERS and of_this_file.get(name, 0) < CHARACTERS // 3:
                sizes[name] = sizes.get(name, 0) + len(text)
                of_this_file[name] = of_this_file.get(name, 0) + len(text)
                found.setdefault(name, []).append(text[: CHARACTERS // 3])
    return {name: "\n".join(texts) for name, texts in found.items()}


def _pieces(file: Path) -> Iterator[tuple[str, str]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            conversation = json.loads(line)
            language = LANGUAGES.get(conversation["language"])
            for message in conversation["messages"]:
                for text in _texts(message.get("content")):
                    yield from _classes(text)
                    if (
                        language
                        and PROSE.match(file.name)
                        and message["role"] in ("user", "assistant")
                        and "```" not in text
                    ):
                        yield language, text
                for call in message.get("tool_calls") or ():
                    arguments = (call.get("function") or {}).get("arguments")
                    if (
                        isinstance(arguments, str)
                        and arguments.isascii()
                        and "\\n" not in arguments
                    ):
                        yield "json", arguments


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        url = (
            (part.get("image_url") or {}).get("url")
            if isinstance(part, dict) and isinstance(part.get("image_url"), dict)
            else None
        )
        yield from (text for text in (part.get("text"), url) if isinstance(text, str))


def _classes(text: str) -> Iterator[tuple[str, str]]:
    yield from (("base64", found) for found in BASE64.findall(text))
    yield from (("code", found) for found in FENCED.findall(text))
    yield from (("markdown tables", found) for found in TABLE.findall(text))
    if text[:1] in "{[" and text.isascii():
        try:
            json.loads(text)
        except ValueError:
            return
        yield "json", text


def own() -> dict[str, str]:
    """A text of each class, the same on every run."""
    rows = [
        {
            "id": n,
            "name": f"item {n}",
            "price": n * 37 % 1000 / 10,
            "tags": ["new", "sale"],
            "ok": n % 2 == 0,
        }
        for n in range(300)
    ]
    here = Path(__file__).parents[2]
    table = "".join(
        f"| `chat-{n}.jsonl` | {n * 1_237:,} | {n / 7:.2f}% | {'yes' if n % 3 else 'no'} |\n"
        for n in range(200)
    )
    encoded = "iVBORw0KGgoAAAANSUhEUgAAB4AAAAQ4CAYAAADo08FDAAAgAElEQVR4nOzdeZwcZZ0/8E91z5VMQgIkBCYEEo4khFMOUVTu"
    return {
        "english": "".join(
            path.read_text(encoding="utf-8")
            for path in sorted((here / "docs").glob("decisions/*.md"))
        ),
        "chinese": "今天我想去北京游玩，请帮我推荐一个评分较高的景点，门票最好不要太贵。附近有没有适合一家人住的酒店？价格在五百元左右。\n"
        "我们公司下个月要上线新的订单系统，数据库迁移由小李负责，接口文档放在内网，请在周五之前把测试报告发给我。\n",
        "japanese": "来週の土曜日に京都へ行きたいのですが、駅から近いホテルを探してもらえますか。朝食付きで、駐車場があるとうれしいです。\n"
        "昨日の会議で決まったとおり、リリースは金曜日の夜に延期します。データベースの移行手順を確認しておいてください。\n",
        "korean": "다음 주 토요일에 부산으로 여행을 가려고 하는데 역에서 가까운 호텔을 찾아 주실 수 있나요? 조식이 포함되면 좋겠습니다.\n"
        "어제 회의에서 결정한 대로 배포는 금요일 밤으로 미루겠습니다. 데이터베이스 이전 절차를 미리 확인해 주세요.\n"
        "비밀번호를 세 번 틀리면 계정이 잠기고, 관리자에게 연락해야 다시 사용할 수 있습니다.\n",
        "code": "".join(
            chain.from_iterable(
                path.read_text(encoding="utf-8")
                for path in sorted((here / "shared/turnfold/core").rglob("*.py"))
            )
        ),
        "json": json.dumps(rows) + json.dumps(rows[:100], indent=2),
        "base64": "".join(encoded[n % 60 :] for n in range(60)),
        "markdown tables": "| name | tokens | share | kept |\n| --- | ---: | ---: | --- |\n"
        + table,
    }
