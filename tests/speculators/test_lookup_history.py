"""Histories: what fits, whose it is, what is erased, and files that must not be searched."""

import contextlib
import itertools
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.entrypoints.generate.base.protocol import validate_cache_salt
from vllm.exceptions import VLLMValidationError

from outrider.common.errors import OutriderError
from outrider.speculators.kinds.suffix_search import SearchedHistory
from outrider.speculators.lookup_history import (
    EarlierResponse,
    History,
    read_history,
    salt_of,
    session_key,
    tenant_key,
)
from tests.fuzzing import examples

SETTINGS = {"k": 4, "factor": 4.0, "least": 0.1}


def response(ids, session="", tenant=""):
    return EarlierResponse(np.array(ids, np.int32), session, tenant)


def random_responses(seed, tenants=("", "acme", "umbrella")):
    random = np.random.default_rng(seed)
    return [
        response(
            random.integers(0, 9, random.integers(0, 30)),
            session=f"session {random.integers(6)}",
            tenant=random.choice(tenants),
        )
        for _ in range(40)
    ]


def asked(history, tenant, recent=(0, 1, 2, 3)):
    drafts, *_ = SearchedHistory(history).drafts(np.array(recent, np.int32), tenant, **SETTINGS)
    return drafts.tolist()


def test_a_request_finds_only_responses_of_its_tenant():
    """An attack: it sends the beginning of another tenant's response."""
    secret = response([1, 2, 3, 99], tenant="acme")
    history = History.of([secret, response([5, 6, 7, 8], tenant="umbrella")], 1.0, shared=False)
    assert asked(history, tenant_key("acme")) == [99]
    for other in ("umbrella", "", "acm", "acme ", "ACME"):
        assert asked(history, tenant_key(other)) == []
    assert asked(history, None) == []
    assert asked(History.of([secret], 1.0, shared=True), None) == [99]


@examples(200)
@given(st.text(max_size=200) | st.text("ab@/\\\0", max_size=8))
def test_tenants_are_sent_as_salts_that_vllm_accepts(tenant: str) -> None:
    try:
        validate_cache_salt(tenant)
    except VLLMValidationError:
        assert salt_of(tenant) is None
    else:
        assert salt_of(tenant) == tenant


def test_a_request_without_salt_is_of_the_only_tenant() -> None:
    """An endpoint with one tenant need not send its name; a request with another finds nothing."""
    only = History.of([response([1, 2, 3, 99], tenant="acme")], 1.0, shared=False)
    assert asked(only, tenant_key(None)) == asked(only, tenant_key("acme")) == [99]
    assert asked(only, tenant_key("umbrella")) == asked(only, None) == []
    assert only.without_salt == 1 and not only.shared
    # A second tenant, for instance in a later window, ends this.
    both = only.extend([response([1, 2, 3, 55], tenant="umbrella"), response([7, 8])], 1.0)
    assert asked(both, tenant_key(None)) == [] and both.without_salt == 1
    assert asked(both, tenant_key("acme")) == [99]


@pytest.mark.parametrize("seed", range(5))
def test_a_tenants_drafts_are_those_of_a_history_of_its_own(seed):
    responses = random_responses(seed)
    together = History.of(responses, 1.0, shared=False)
    for tenant in ("", "acme", "umbrella"):
        alone = History.of([r for r in responses if r.tenant == tenant], 1.0, shared=True)
        for recent in itertools.product(range(4), repeat=3):
            assert asked(together, tenant_key(tenant), recent) == asked(alone, None, recent)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_an_erased_history_is_the_one_without_those_sessions(tmp_path, seed, shared):
    responses = random_responses(seed)
    path = tmp_path / "history.npz"
    History.of(responses, 1.0, shared).write(path)
    gone = {"session 1", "session 4"}
    read_history(path).without_sessions([session_key(name) for name in gone]).write(path)
    erased = read_history(path)
    left = History.of([r for r in responses if r.session not in gone], 1.0, shared)
    assert erased.facts == left.facts and 0 < erased.responses < 39
    for tenant in ("", "acme", "umbrella"):
        for recent in itertools.product(range(4), repeat=3):
            assert asked(erased, tenant_key(tenant), recent) == asked(
                left, tenant_key(tenant), recent
            )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_an_extended_history_is_the_one_of_all_responses(seed, shared):
    responses = random_responses(seed)
    together = History.of(responses, 1.0, shared)
    extended = History.of(responses[:15], 1.0, shared).extend(responses[15:], 1.0)
    assert extended.facts == together.facts
    for tenant in ("", "acme", "umbrella"):
        for recent in itertools.product(range(4), repeat=3):
            key = tenant_key(tenant)
            assert asked(extended, key, recent) == asked(together, key, recent)
    erased = extended.without_sessions([session_key("session 1")])
    left = [response for response in responses if response.session != "session 1"]
    assert erased.facts == History.of(left, 1.0, shared).facts


def test_an_extended_history_forgets_the_oldest():
    first = History.of([response([n] * 100) for n in range(30)], 20 * 832e-9, shared=True)
    second = first.extend([response([n] * 100) for n in range(30, 40)], 20 * 832e-9)
    assert set(second.tokens_N) == {-1, *range(20, 40)}
    assert second.facts["offered"] == 40


def test_the_newest_responses_that_fit_are_kept_and_their_share_is_stated():
    responses = [response([n] * 100, session=str(n)) for n in range(50)]
    history = History.of(responses, max_gb=20 * (8 * 100 + 32) / 1e9, shared=True)
    assert history.facts == {
        "responses": 20,
        "offered": 50,
        "tokens": 2000,
        "gigabytes": pytest.approx(20 * 832e-9),
        "shared": True,
        "without_salt": 20,
    }
    assert set(history.tokens_N) == {-1, *range(30, 50)}


def test_only_the_owner_reads_the_file_and_equal_histories_are_equal_files(tmp_path):
    for name in "ab":
        History.of(random_responses(0), 1.0, shared=False).write(tmp_path / name)
    assert (tmp_path / "a").stat().st_mode & 0o077 == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert b"acme" not in (tmp_path / "a").read_bytes()


@pytest.mark.parametrize("shared", [False, True])
def test_a_history_without_responses_drafts_nothing_and_can_be_extended(tmp_path, shared):
    History.of([], 1.0, shared).write(tmp_path / "history.npz")
    empty = read_history(tmp_path / "history.npz")
    assert asked(empty, None) == [] and empty.shared == shared
    extended = empty.extend([response([1, 2, 3, 99], tenant="acme")], 1.0)
    assert asked(extended, tenant_key("acme")) == [99]
    assert asked(extended, tenant_key("umbrella")) == ([99] if shared else [])


FAULTS = {
    "rows_N": lambda a: a + 10_000,
    "rows_N ": lambda a: a - 10_000,
    "rows_N  ": lambda a: a.astype(np.int64),
    "tokens_N": lambda a: a[:-1],
    "tokens_N ": lambda a: np.where(a == -1, 5, a).astype(np.int32),
    "tokens_N  ": lambda a: a - 1,
    "ends_R": lambda a: a[::-1],
    "ends_R ": lambda a: a[:-1],
    "ends_R  ": lambda a: a * 2,
    "firsts_G": lambda a: a[::-1],
    "firsts_G ": lambda a: a * 3,
    "firsts_G  ": lambda a: a[:-1],
    "sessions_R": lambda a: a[:, :5],
    "tenants_G": lambda a: a[:1],
    "version": lambda a: a + 1,
    "offered": lambda a: a.astype(object),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_file_is_refused(tmp_path, fault):
    """The search does not check indices, so no such file may reach it."""
    path = tmp_path / "history.npz"
    History.of(random_responses(0), 1.0, shared=False).write(path)
    with np.load(path) as stored:
        arrays = dict(stored)
    name = fault.strip()
    np.savez(path, **{**arrays, name: FAULTS[fault](arrays[name])})
    with pytest.raises(OutriderError, match=r"history\.npz"):
        read_history(path)


FAR = 2**63 - 1


@pytest.mark.parametrize(
    "changed",
    [
        # Differences of such numbers wrap around, so that they seem to be in order.
        {"firsts_G": [0, FAR, -(2**62), 5]},
        {"ends_R": [2, FAR, -(2**62), 9]},
    ],
)
def test_indices_whose_differences_overflow_are_refused(tmp_path, changed):
    """The search would read 2**63 rows behind its array."""
    path = tmp_path / "history.npz"
    tenants = ["", "acme", "umbrella"]
    responses = [response([1], tenant=tenant) for tenant in tenants]
    responses.append(response([2, 3], tenant="umbrella"))
    History.of(responses, 1.0, shared=False).write(path)
    read_history(path)
    with np.load(path) as stored:
        arrays = dict(stored)
    for name, values in changed.items():
        assert len(values) == len(arrays[name]) and values[-1] == arrays[name][-1]
        arrays[name] = np.array(values, np.int64)
    np.savez(path, **arrays)
    with pytest.raises(OutriderError, match="outside of"):
        read_history(path)


def npy(header: bytes, version: bytes = b"\x01\x00") -> bytes:
    """The beginning of a numpy file."""
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header


ARRAY = b"{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }\n"
HOSTILE = {
    "another format": b"no array",
    "a shape of 40 TB": npy(ARRAY % 10**13),
    "a shape of no machine word": npy(ARRAY % 10**30),
    "a negative shape": npy(ARRAY % -1),
    "Python that does not end": npy(b"{'descr': (((\n"),
    "nested Python": npy(b"(" * 9000 + b"\n"),
    "objects": npy(ARRAY.replace(b"<i4", b"|O") % 5),
    "an unknown version": npy(ARRAY % 5, b"\x09\x00"),
}


def write_archive(path, replaced, compression=zipfile.ZIP_STORED):
    """A history as `write` writes it, with other contents of some arrays."""
    History.of(random_responses(0), 1.0, shared=False).write(path)
    with zipfile.ZipFile(path) as whole:
        contents = {name: whole.read(name) for name in whole.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in (contents | replaced).items():
            archive.writestr(name, content)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_arrays_are_refused_with_a_message(tmp_path, name):
    path = tmp_path / "history.npz"
    write_archive(path, {"tokens_N.npy": HOSTILE[name]})
    with pytest.raises(OutriderError, match="not a history"):
        read_history(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_compressed_arrays_are_refused_before_they_are_unpacked(tmp_path, compression):
    """They may hold a thousand times the file's size."""
    path = tmp_path / "history.npz"
    write_archive(path, {}, compression)
    with pytest.raises(OutriderError, match="is compressed"):
        read_history(path)


@examples(100)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_changed_bytes_are_refused_or_searched_in_bounds(tmp_path, seed, count):
    path = tmp_path / "history.npz"
    History.of(random_responses(0), 1.0, shared=False).write(path)
    content = bytearray(path.read_bytes())
    random = np.random.default_rng(seed)
    for place in random.integers(0, len(content), count):
        content[place] = random.integers(256)
    path.write_bytes(content)
    with contextlib.suppress(OutriderError):
        history = read_history(path)
        assert history.firsts_G.min() >= 0 and history.firsts_G.max() <= len(history.rows_N)


def test_a_damaged_or_missing_file_is_refused(tmp_path):
    path = tmp_path / "history.npz"
    with pytest.raises(OutriderError, match="no such file"):
        read_history(path)
    History.of(random_responses(0), 1.0, shared=False).write(path)
    whole = path.read_bytes()
    for damaged in (b"", b"no zip", whole[:-30], whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(OutriderError, match="not a history"):
            read_history(path)
