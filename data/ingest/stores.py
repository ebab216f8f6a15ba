"""Stores behind a URL: whatever their clients raise when one does not answer becomes one message with the URL and what to do.

    with answering("traffic.path = 's3://bucket/logs'"):
        filesystem.find(path)

Each client has errors of its own, most of them no OSError. They are known by the module that defines them: one that was raised is
loaded, so that no client needs to be imported, or installed, to be caught.
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
"""The base of what each client raises: huggingface_hub's (httpx, httpx2 or requests by release), http's, s3fs's, gcsfs's, adlfs's."""

NETWORK_ERRORS = (ConnectionError, TimeoutError, socket.gaierror)


def store_errors() -> tuple[type[BaseException], ...]:
    """What an unreachable store raises, as far as its client is loaded."""
    loaded = [
        getattr(sys.modules[module], name, None)
        for module, name in CLIENT_ERRORS.items()
        if module in sys.modules
    ]
    return (*NETWORK_ERRORS, *(error for error in loaded if isinstance(error, type)))


@contextlib.contextmanager
def answering(what: str) -> Iterator[None]:
    """Raises `OutriderError` about `what` where a store inside the block does not answer or refuses the credentials."""
    try:
        yield
    except store_errors() as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        raise OutriderError(
            f"{what}: the store does not answer ({said}); check the address, the network and the credentials and run the same "
            "command again, or copy the files here and name the copy"
        ) from None
