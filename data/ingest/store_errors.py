"""Errors of remote stores: any client's failure becomes one message with the URL and the fix.

    with answering("traffic.path = 's3://bucket/logs'"):
        filesystem.find(path)

Each client has its own errors, most of which are not OSErrors. They are looked up in `sys.modules`:
a client that raised one is loaded, and no other needs to be installed.
"""

import contextlib
import socket
import sys
from collections.abc import Iterator

from outrider.common.errors import OutriderError

CLIENT_ERRORS = {
    "httpx": "HTTPError",
    "httpx2": "HTTPError",
    "requests": "RequestException",
    "aiohttp": "ClientError",
    "botocore.exceptions": "BotoCoreError",
    "gcsfs.retry": "HttpError",
    "google.auth.exceptions": "GoogleAuthError",
    "azure.core.exceptions": "AzureError",
}
"""Base error of each client: huggingface_hub (httpx, httpx2 or requests, by release), http, s3fs,
gcsfs, adlfs."""

NETWORK_ERRORS = (ConnectionError, TimeoutError, socket.gaierror)


def store_errors() -> tuple[type[BaseException], ...]:
    """Errors that an unreachable store raises, of the clients that are loaded."""
    loaded = [
        getattr(sys.modules[module], name, None)
        for module, name in CLIENT_ERRORS.items()
        if module in sys.modules
    ]
    return (*NETWORK_ERRORS, *(error for error in loaded if isinstance(error, type)))


@contextlib.contextmanager
def answering(what: str) -> Iterator[None]:
    """Raises `OutriderError` where a store does not answer or refuses the credentials.

    `what` begins the message.
    """
    try:
        yield
    except store_errors() as error:
        detail = f"{type(error).__name__}: {error}".rstrip(": ")
        raise OutriderError(
            f"{what}: the store does not answer ({detail}); check the address, the network and the "
            "credentials and rerun the command, or copy the files here and name the copy"
        ) from None
