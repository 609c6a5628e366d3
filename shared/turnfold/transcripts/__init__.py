"""Readers of conversations that other programs recorded."""

from turnfold.transcripts.formats import Format
from turnfold.transcripts.reading import (
    STANDARD_INPUT,
    Conversation,
    Turn,
    UnreadableTranscript,
    read_conversations,
    turns,
)

__all__ = [
    "STANDARD_INPUT",
    "Conversation",
    "Format",
    "Turn",
    "UnreadableTranscript",
    "read_conversations",
    "turns",
]
