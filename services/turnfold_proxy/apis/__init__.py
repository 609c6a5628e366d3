"""The provider APIs that the proxy understands: where a request holds its conversation."""

from collections.abc import Mapping

from turnfold_proxy.apis.api import Api
from turnfold_proxy.apis.chat import ChatApi

APIS: Mapping[str, Api] = {"/v1/chat/completions": ChatApi()}
"""The APIs by the path of their model calls."""
