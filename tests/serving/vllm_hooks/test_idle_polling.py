"""How long vLLM's processes poll after their last work."""

import pytest
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

from outrider.serving.vllm_hooks import idle_polling
from outrider.serving.vllm_hooks.idle_polling import POLLING_S, VLLM_POLLING_S, settle_s


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Notified(Exception):
    """The reader waits for a notification."""


class Poller:
    def poll(self, timeout: int | None) -> None:
        raise Notified


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(shm_broadcast, "time", clock)
    monkeypatch.setattr(idle_polling, "time", clock)
    return clock


def polls_until(reader: SpinCondition, clock: Clock) -> float:
    """Time at which the reader no longer polls."""
    start = clock.now
    with pytest.raises(Notified):
        while clock.now < start + 10:
            reader.wait()
            clock.now += 0.001
    return clock.now


def test_a_reader_polls_for_a_second_at_first_and_then_for_a_moment(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SpinCondition, "record_read", SpinCondition.record_read)
    idle_polling.install()
    reader = object.__new__(SpinCondition)
    reader.is_reader, reader.busy_loop_s, reader.last_read = True, VLLM_POLLING_S, clock.now
    reader.poller = Poller()
    connected = clock.now + VLLM_POLLING_S
    assert polls_until(reader, clock) == pytest.approx(connected, abs=0.01)
    reader.record_read()
    assert polls_until(reader, clock) == pytest.approx(connected + VLLM_POLLING_S, abs=0.01)
    for _ in range(3):
        clock.now += 3.0
        read = clock.now
        reader.record_read()
        assert polls_until(reader, clock) == pytest.approx(read + POLLING_S, abs=0.01)
        assert clock.now < read + settle_s()
