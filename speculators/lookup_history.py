"""The history that a lookup searches: responses to earlier requests, in one file.

    history = History.of(responses, max_gb=1.0, shared=False)
    history.write(directory / HISTORY_FILE)
    history = read_history(directory / HISTORY_FILE)
    history.without_sessions([session_key("conversation 17")])      # erased

The file is customer text: token ids, sorted for search (suffix_array.py), so that an engine loads
it in a second. Nothing in it depends on vLLM or its model runner. Sessions and tenants are stored
as digests, so that a session can be erased by its name and a tenant is found by its `cache_salt`.

Shapes: N tokens of all responses, R responses, G tenants.
"""

import dataclasses
import hashlib
import itertools
import zipfile
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outrider.common.errors import OutriderError
from outrider.common.files import publish
from outrider.speculators.suffix_array import DEPTH, END, suffix_array

HISTORY_FILE = "history.npz"
"""Name of the file in a speculator's directory."""

VERSION = 1
"""Format of the file."""

TOKEN_BYTES, RESPONSE_BYTES = 8, 32
"""Memory of a token (its id and its row) and, besides its tokens, of a response."""

KEY_BYTES = 16

EVERYONE = b"\0" * KEY_BYTES
"""Key of the only tenant of a shared history."""

_ARRAYS = {
    "version": np.int64,
    "offered": np.int64,
    "tokens_N": np.int32,
    "rows_N": np.int32,
    "ends_R": np.int64,
    "sessions_R": np.uint8,
    "tenants_G": np.uint8,
    "firsts_G": np.int64,
}
"""Arrays of the file and their dtypes; keys are rows of KEY_BYTES bytes."""


@dataclasses.dataclass(frozen=True)
class EarlierResponse:
    """An earlier response, and whose it was."""

    token_ids: NDArray[np.int32]
    session: str = ""
    tenant: str = ""


@dataclasses.dataclass(frozen=True)
class History:
    """Earlier responses, grouped by tenant."""

    offered: NDArray[np.int64]
    """Number of responses from which the newest that fit were taken; a scalar."""
    tokens_N: NDArray[np.int32]
    """Each response is followed by END; DEPTH more of them follow the last."""
    rows_N: NDArray[np.int32]
    """Suffix array of each tenant's responses, one after another."""
    ends_R: NDArray[np.int64]
    """Index after each response's END."""
    sessions_R: NDArray[np.uint8]
    """Each response's `session_key` [R, KEY_BYTES]."""
    tenants_G: NDArray[np.uint8]
    """Each tenant's `tenant_key` [G, KEY_BYTES]; one row, EVERYONE, if the history is shared."""
    firsts_G: NDArray[np.int64]
    """First row of each tenant, and the number of rows [G + 1]."""

    @classmethod
    def of(cls, responses: Iterable[EarlierResponse], max_gb: float, shared: bool) -> "History":
        """Keeps the newest responses that fit into `max_gb`; `responses` begin with the oldest.

        Requests of all tenants search a `shared` history; otherwise each searches its own tenant's
        responses, and a request without `cache_salt` those without a tenant, or those of the only
        tenant.
        """
        entries = (
            _Entry(
                token_ids=response.token_ids,
                session=session_key(response.session),
                tenant=EVERYONE if shared else tenant_key(response.tenant),
            )
            for response in responses
            if len(response.token_ids)
        )
        return cls._of_entries(entries, max_gb, shared, already_offered=0)

    def extend(self, responses: Iterable[EarlierResponse], max_gb: float) -> "History":
        """The newest of these responses and of `responses`, which are newer."""
        new = History.of(responses, max_gb, self.shared)
        forgotten = int(self.offered) - self.responses + int(new.offered) - new.responses
        entries = itertools.chain(self._entries(), new._entries())
        return self._of_entries(entries, max_gb, self.shared, already_offered=forgotten)

    @classmethod
    def _of_entries(
        cls, entries: Iterable["_Entry"], max_gb: float, shared: bool, already_offered: int
    ) -> "History":
        # A shared history names EVERYONE even if it is empty.
        by_tenant: dict[bytes, list[_Entry]] = defaultdict(list, {EVERYONE: []} if shared else {})
        fitting, offered = newest_responses(entries, max_gb)
        for entry in fitting:
            by_tenant[entry.tenant].append(entry)
        grouped = [entry for group in by_tenant.values() for entry in group]
        texts_G = [_text(group) for group in by_tenant.values()]
        starts = np.cumsum([0, *map(len, texts_G)])
        pairs = zip(texts_G, starts[:-1], strict=True)
        rows_G = [suffix_array(text_N) + np.int32(start) for text_N, start in pairs]
        sizes = [len(entry.token_ids) + 1 for entry in grouped]
        return cls(
            offered=np.array(already_offered + offered, np.int64),
            tokens_N=np.concatenate([*texts_G, np.full(DEPTH, END, np.int32)]),
            rows_N=np.concatenate([*rows_G, np.empty(0, np.int32)]),
            ends_R=np.cumsum(sizes, dtype=np.int64),
            sessions_R=_keys(entry.session for entry in grouped),
            tenants_G=_keys(by_tenant),
            firsts_G=np.cumsum([0, *map(len, rows_G)], dtype=np.int64),
        )

    def _entries(self) -> Iterator["_Entry"]:
        """Yields the responses, tenant after tenant."""
        texts = np.split(self.tokens_N[:-DEPTH], self.ends_R[:-1])
        for text_N, session, group in zip(texts, self.sessions_R, self._groups_R, strict=False):
            yield _Entry(text_N[:-1], bytes(session), bytes(self.tenants_G[group]))

    @property
    def _groups_R(self) -> NDArray[np.int64]:
        """Index of each response's tenant."""
        # Rows are counted as tokens are, tenant after tenant, but without END.
        before_R = self.ends_R - 1 - np.arange(self.responses)
        return np.searchsorted(self.firsts_G[1:], before_R - 1, side="right")

    @property
    def without_salt(self) -> int:
        """Number of responses that a request without `cache_salt` searches."""
        if len(self.tenants_G) == 1:
            return self.responses
        nobody = tenant_key(None)
        is_nobody_G = np.array([bytes(key) == nobody for key in self.tenants_G], bool)
        return int(is_nobody_G[self._groups_R].sum())

    @property
    def has_several_tenants(self) -> bool:
        """Whether a request must name its tenant to search the tenant's responses."""
        return len(self.tenants_G) > 1

    @property
    def shared(self) -> bool:
        """Whether requests of all tenants search it."""
        return [*map(bytes, self.tenants_G)] == [EVERYONE]

    @property
    def tokens(self) -> int:
        """Number of tokens in all responses."""
        return len(self.rows_N)

    @property
    def responses(self) -> int:
        """Number of responses."""
        return len(self.ends_R)

    @property
    def facts(self) -> dict[str, Any]:
        """What a report and a bundle state of the history."""
        return {
            "responses": self.responses,
            "offered": int(self.offered),
            "tokens": self.tokens,
            "gigabytes": self.gigabytes,
            "shared": self.shared,
            "without_salt": self.without_salt,
        }

    @property
    def gigabytes(self) -> float:
        """Memory of an engine's process that searches it."""
        return (TOKEN_BYTES * self.tokens + RESPONSE_BYTES * self.responses) / 1e9

    def write(self, path: Path) -> None:
        """Publishes the file; only its owner can read it."""
        arrays = dataclasses.asdict(self)
        with publish(path) as temporary:
            temporary.touch(mode=0o600)
            with temporary.open("wb") as file:
                np.savez(file, version=np.array(VERSION, np.int64), **arrays)

    def without_sessions(self, sessions: Collection[bytes]) -> "History":
        """The history without the responses of these sessions (`session_key`)."""
        erased_R = np.array([bytes(key) in sessions for key in self.sessions_R], bool)
        sizes_R = np.diff(self.ends_R, prepend=0)
        # The padding stays.
        is_kept_N = np.append(np.repeat(~erased_R, sizes_R), np.ones(DEPTH, bool))
        moved_N = (np.cumsum(is_kept_N) - 1).astype(np.int32)
        # What is left of a sorted array is sorted.
        is_kept_row_N = is_kept_N[self.rows_N]
        counted_N = np.concatenate([[0], np.cumsum(is_kept_row_N)])
        return dataclasses.replace(
            self,
            offered=self.offered - erased_R.sum(),
            tokens_N=self.tokens_N[is_kept_N],
            rows_N=moved_N[self.rows_N[is_kept_row_N]],
            ends_R=np.cumsum(sizes_R[~erased_R]),
            sessions_R=self.sessions_R[~erased_R],
            firsts_G=counted_N[self.firsts_G],
        )


LONGEST_SALT = 128
"""Maximum length of `cache_salt`, in characters."""

NOT_IN_SALTS = frozenset("@/\\\0")


class _Entry(NamedTuple):
    """A response as it is stored."""

    token_ids: NDArray[np.int32]
    session: bytes
    tenant: bytes


def _text(entries: Iterable[_Entry]) -> NDArray[np.int32]:
    """The tokens of all responses, each followed by END."""
    end = np.array([END], np.int32)
    ended = [ids for entry in entries for ids in (entry.token_ids, end)]
    return np.concatenate([np.empty(0, np.int32), *ended])


def newest_responses(entries: Iterable[_Entry], max_gb: float) -> tuple[deque[_Entry], int]:
    """The newest responses that fit into `max_gb`, and the number of all; the oldest come first."""
    fitting: deque[_Entry] = deque()
    offered = 0
    free = max_gb * 1e9
    for entry in entries:
        offered += 1
        fitting.append(entry)
        free -= _size(entry)
        while free < 0:
            free += _size(fitting.popleft())
    return fitting, offered


def _size(entry: _Entry) -> int:
    return TOKEN_BYTES * len(entry.token_ids) + RESPONSE_BYTES


def session_key(session: str) -> bytes:
    """Digest of a session's name, by which it is erased."""
    return _digest("session", session)


def salt_of(tenant: str) -> str | None:
    """The `cache_salt` of a tenant's requests; None for names that vLLM 0.32 refuses.

    vllm/entrypoints/generate/base/protocol.py, `validate_cache_salt`.
    """
    is_valid = 0 < len(tenant) <= LONGEST_SALT and not NOT_IN_SALTS & set(tenant)
    return tenant if is_valid else None


def tenant_key(cache_salt: str | None) -> bytes:
    """Digest of a tenant's name in the log, and of the `cache_salt` of the tenant's requests."""
    return _digest("tenant", cache_salt or "")


def _digest(what: str, name: str) -> bytes:
    return hashlib.sha256(f"{what}\0{name}".encode()).digest()[:KEY_BYTES]


def _keys(keys: Iterable[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY_BYTES)


def read_history(path: Path) -> History:
    """Reads a history; raises an `OutriderError` if the file is missing, damaged or malformed.

    A bundle may come from anyone, and the search does not check indices, so all of them are checked
    here.
    """
    try:
        arrays = _read_arrays(path)
    except FileNotFoundError:
        raise OutriderError(f"{path}: no such file; export the lookup again") from None
    except Exception as error:  # zipfile and numpy raise a dozen kinds for a hostile file
        raise OutriderError(f"{path}: not a history ({error!r:.200}); export again") from None
    version = arrays.pop("version")
    history = History(**arrays)
    if reason := _malformed(history, version):
        raise OutriderError(f"{path}: {reason}; export again")
    return history


def _read_arrays(path: Path) -> dict[str, Any]:
    """Reads the arrays, which take no more memory than the file.

    Compressed ones are refused: 1.5 MB of them can hold 1.6 GB.
    """
    arrays = dict[str, Any]()
    with zipfile.ZipFile(path) as stored:
        for name in _ARRAYS:
            member = stored.getinfo(f"{name}.npy")
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{name} is compressed")
            with stored.open(member) as content:
                arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
    return arrays


def _malformed(history: History, version: NDArray[np.int64]) -> str | None:
    """Why the search could read outside of its arrays, or find another tenant's text."""
    for name, array in vars(history).items():
        dimensions = 0 if name == "offered" else 1 + (array.dtype == np.uint8)
        if array.dtype != _ARRAYS[name] or array.ndim != dimensions:
            return f"{name}: dtype or shape is wrong"
    if version.shape != () or version != VERSION:
        return f"version {version}, but this Outrider reads version {VERSION}"
    return _misplaced_keys(history) or _misplaced_tokens(history)


def _misplaced_keys(history: History) -> str | None:
    """Why the keys do not belong to the responses and rows."""
    firsts_G = history.firsts_G
    if any(array.shape[1] != KEY_BYTES for array in (history.sessions_R, history.tenants_G)):
        return "a key has another length"
    if len(history.ends_R) != len(history.sessions_R):
        return "ends_R and sessions_R differ in length"
    if len(firsts_G) != len(history.tenants_G) + 1:
        return "firsts_G and tenants_G do not belong together"
    rows = len(history.rows_N)
    # Each is compared by itself: differences of numbers near 2**63 wrap around.
    is_outside_G = (firsts_G < 0) | (firsts_G > rows)
    if firsts_G[0] != 0 or firsts_G[-1] != rows or is_outside_G.any():
        return "firsts_G: outside of rows_N"
    if (np.diff(firsts_G) < 0).any():
        return "firsts_G: not in the order of rows_N"
    return None


def _misplaced_tokens(history: History) -> str | None:
    """Why the rows or the ends are not those of the tokens."""
    tokens_N = history.tokens_N
    rows_N = history.rows_N
    if ((history.ends_R < 1) | (history.ends_R > len(tokens_N))).any():
        return "ends_R: outside of tokens_N"
    sizes_R = np.diff(history.ends_R, prepend=0)
    if (sizes_R < 1).any() or sizes_R.sum() + DEPTH != len(tokens_N):
        return "ends_R: not the ends of the responses"
    is_end_N = np.ones(len(tokens_N), bool)
    is_end_N[:-DEPTH] = False
    is_end_N[history.ends_R - 1] = True
    if ((tokens_N == END) != is_end_N).any() or (tokens_N < END).any():
        return "tokens_N: not ended where ends_R has the ends"
    if len(rows_N) and (rows_N.min() < 0 or rows_N.max() >= len(tokens_N) - DEPTH):
        return "rows_N: outside of tokens_N"
    return None
