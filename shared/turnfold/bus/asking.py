"""Translate a missing or unreadable reply of the bus into `Unavailable`."""

from collections.abc import Generator
from contextlib import contextmanager

import nats.errors
from nats.js.errors import Error as JetStreamError

from turnfold.errors import Unavailable


@contextmanager
def asking() -> Generator[None]:
    """Send requests and read their replies in the body.

    Raises:
        Unavailable: there was no reply, or an invalid one: any client may reply to a request.
    """
    try:
        yield
    except (nats.errors.Error, JetStreamError, TimeoutError) as error:
        raise Unavailable(
            f"the stream does not answer ({type(error).__name__}); try again later"
        ) from error
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Unavailable(
            f"a reply of the stream cannot be read ({type(error).__name__}); try again later"
        ) from error
