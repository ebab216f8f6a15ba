"""States that reach the host late are complete when they are handed out, in order."""

import torch

from outrider.serving.vllm_hooks.host_copies import Copy, HostCopies, Piece


def test_a_step_is_handed_out_after_the_next_one_has_begun() -> None:
    begun: list[int] = []
    taken: list[tuple[int, float]] = []

    def late(hidden_NH: torch.Tensor) -> Copy:
        """As a GPU's stream: the host's memory is filled when it is waited for."""
        begun.append(len(taken))
        host_NH, source_NH = torch.full_like(hidden_NH, float("nan")), hidden_NH.clone()
        return Copy(host_NH, lambda: host_NH.copy_(source_NH))

    def put(start: int, hidden_TH: torch.Tensor) -> None:
        taken.extend(zip(range(start, start + len(hidden_TH)), hidden_TH[:, 0].tolist()))  # noqa: B905

    copies = HostCopies(late)
    step_NH = torch.zeros(4, 1)
    for step in range(3):
        step_NH[:] = torch.arange(4)[:, None] + 10 * step
        copies.add(step_NH, [Piece(put, 4 * step, 0, 2), Piece(put, 4 * step + 2, 2, 2)])
    copies.add(step_NH, [])  # a step of another rank's requests
    copies.finish()
    assert taken == [(4 * step + i, 10.0 * step + i) for step in range(3) for i in range(4)]
    assert begun == [0, 0, 4]  # one step waits, no more


def test_states_of_a_cpu_are_handed_out_at_once() -> None:
    taken: list[torch.Tensor] = []
    hidden_NH = torch.randn(3, 2)
    HostCopies().add(hidden_NH, [Piece(lambda start, rows: taken.append(rows.clone()), 0, 1, 2)])
    assert taken[0].equal(hidden_NH[1:].bfloat16())
