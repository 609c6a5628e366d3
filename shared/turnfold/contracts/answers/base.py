"""The base of all answers, and the parts that several answers share."""

from pydantic import BaseModel, ConfigDict, Field

from turnfold.contracts.fields import Count


class Answer(BaseModel):
    """An answer or a part of one. Receivers must ignore fields that they do not know.

    An optional field of a model is absent from the answer if it does not apply.
    """

    # Built at first use, because services start often and describe themselves rarely.
    model_config = ConfigDict(frozen=True, defer_build=True)


class AuditHead(Answer):
    """The end of a session's audit chain; a shortened chain does not match it."""

    rows: Count = Field(description="The number of audit rows of the session.")
    hash: str = Field(description="The hash of the newest row; empty if there is none.")
