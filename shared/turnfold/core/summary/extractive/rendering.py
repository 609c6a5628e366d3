"""Render the sections of a summary as text: headings and their lines.

Headings are in English, Chinese or Japanese. Summaries that a model wrote in the structured style
are rendered by the same rules.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from turnfold.core.summary.extractive.lines import LISTS, MAX_LINES, context_lines, list_texts
from turnfold.core.summary.sentences import language

MAX_FOLDER_CHARACTERS = 400
"""The longest folder that is stated once for all its files."""

_MIN_SAVED_CHARACTERS = 40
_FILE_LIMITS = {"modified": 12, "read": 8}
_HEADINGS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "tasks": "The user asked:", "constraints": "Constraints and preferences stated:",
        "decisions": "It was decided:", "facts": "The user said:", "context": "What came of it:",
        "actions": "Actions taken:", "commands": "Commands run:", "errors": "Errors met:",
        "open_questions": "Left open:", "modified": "Files modified", "read": "Files read",
        "under": " (under {})", "more": " and {} more",
    },
    "zh": {
        "tasks": "用户提出：", "constraints": "约束与偏好：", "decisions": "作出的决定：",
        "facts": "用户提到：", "context": "进展与答复：", "actions": "执行过的操作：",
        "commands": "运行过的命令：", "errors": "遇到的错误：", "open_questions": "尚未解决：",
        "modified": "修改过的文件", "read": "读取过的文件", "under": "（位于 {}）",
        "more": " 等，另有 {} 个",
    },
    "ja": {
        "tasks": "ユーザーの依頼：", "constraints": "条件と希望：", "decisions": "決まったこと：",
        "facts": "ユーザーの話：", "context": "経過と回答：", "actions": "実行した操作：",
        "commands": "実行したコマンド：", "errors": "起きたエラー：", "open_questions": "未解決：",
        "modified": "変更したファイル", "read": "読んだファイル", "under": "（{} 以下）",
        "more": " ほか {} 件",
    },
}  # fmt: skip


def render(sections: Mapping[str, Any], language_code: str | None = None) -> str:
    """Render sections as readable text. Empty and unreadable sections are left out.

    Without `language_code` (`en`, `zh` or `ja`), the headings are in the language of the lines.
    """
    lists = {name: list_texts(sections.get(name)) for name in LISTS}
    context = context_lines(sections.get("context"))
    if language_code is None:
        texts = [*context, *(text for texts in lists.values() for text in texts)]
        language_code = language(" ".join(texts))
    headings = _HEADINGS[language_code]
    rendered: list[str] = []
    for name in MAX_LINES:
        texts = context if name == "context" else lists[name]
        if name == "errors":
            rendered += _file_lines(sections.get("file_changes"), headings)
        if texts:
            rendered += [headings[name], *(f"- {text}" for text in texts)]
    return "\n".join(rendered)


def _file_lines(stored: Any, headings: Mapping[str, str]) -> list[str]:
    """Return one line for modified and one for read files; the first names a shared folder."""
    changes = (
        [item for item in stored if isinstance(item, Mapping) and isinstance(item.get("path"), str)]
        if isinstance(stored, list | tuple)
        else []
    )
    folder = _shared_folder([change["path"] for change in changes])
    lines: list[str] = []
    for action, limit in _FILE_LIMITS.items():
        paths = [change["path"] for change in changes if change.get("action") == action]
        if paths:
            names = ", ".join(path.removeprefix(folder) for path in paths[-limit:])
            more = headings["more"].format(len(paths) - limit) if len(paths) > limit else ""
            under = headings["under"].format(folder) if folder and not lines else ""
            lines.append(f"{headings[action]}{under}: {names}{more}")
    return lines


def _shared_folder(paths: Sequence[str]) -> str:
    """Return the folder that saves most characters if it is named once, or an empty text."""
    numbers = Counter[str]()
    for path in paths:
        slash = path.rfind("/", 0, MAX_FOLDER_CHARACTERS)
        while slash > 0:
            folder = path[: slash + 1]
            numbers[folder] += 1
            slash = path.rfind("/", 0, slash)

    def saved(folder: str) -> int:
        return (numbers[folder] - 1) * len(folder)

    best = max(numbers, key=lambda folder: (saved(folder), folder), default="")
    return best if best and saved(best) > _MIN_SAVED_CHARACTERS else ""
