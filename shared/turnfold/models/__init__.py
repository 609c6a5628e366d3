"""The summarizer: a child process without database access, the only one that loads litellm."""

from turnfold.models.parent import ChildSummarizer

__all__ = ["ChildSummarizer"]
