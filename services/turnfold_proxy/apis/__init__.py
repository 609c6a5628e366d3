"""The provider APIs that the proxy understands: where a request holds its conversation."""

from collections.abc import Mapping

from turnfold_proxy.apis.api import Api
from turnfold_proxy.apis.chat import ChatApi
from turnfold_proxy.apis.messages import MessagesApi
from turnfold_proxy.apis.responses import ResponsesApi

APIS: Mapping[str, Api] = {
    "/v1/chat/completions": ChatApi(),
    "/v1/messages": MessagesApi(),
    "/v1/responses": ResponsesApi(),
}
"""The APIs by the path of their model calls."""
