"""States that reach the host late are complete when they are handed out, in order."""

from collections.abc import Sequence

import torch

from outrider.serving.vllm_hooks.host_copies import Copy, HostCopies, Piece


def test_a_step_is_handed_out_after_the_next_one_has_begun() -> None:
    begun: list[int] = []
    taken: list[tuple[int, float]] = []

    def late(states_NH: Sequence[torch.Tensor]) -> Copy:
        """As a GPU's stream: the host's memory is filled when it is waited for."""
        begun.append(len(taken))
        hosts = [torch.full_like(state_NH, float("nan")) for state_NH in states_NH]
        sources = [state_NH.clone() for state_NH in states_NH]
        return Copy(
            hosts, lambda: [host.copy_(source) for host, source in zip(hosts, sources, strict=True)]
        )

    def put(start: int, rows: list[torch.Tensor]) -> None:
        hidden_TH, other_TH = rows
        assert other_TH.equal(-hidden_TH)
        taken.extend(zip(range(start, start + len(hidden_TH)), hidden_TH[:, 0].tolist()))  # noqa: B905

    copies = HostCopies(late)
    step_NH, other_NH = torch.zeros(4, 1), torch.zeros(4, 1)
    for step in range(3):
        step_NH[:] = torch.arange(4)[:, None] + 10 * step
        other_NH[:] = -step_NH
        pieces = [Piece(put, 4 * step, 0, 2), Piece(put, 4 * step + 2, 2, 2)]
        copies.add([step_NH, other_NH], pieces)
    copies.add([step_NH, other_NH], [])  # a step of another rank's requests
    copies.finish()
    assert taken == [(4 * step + i, 10.0 * step + i) for step in range(3) for i in range(4)]
    assert begun == [0, 0, 4]  # one step waits, no more


def test_states_of_a_cpu_are_handed_out_at_once() -> None:
    taken: list[torch.Tensor] = []
    states_NH = [torch.randn(3, 2), torch.randn(3, 2)]
    HostCopies().add(states_NH, [Piece(lambda start, rows: taken.extend(rows), 0, 1, 2)])
    assert [rows.equal(state[1:].bfloat16()) for rows, state in zip(taken, states_NH, strict=True)]
    assert len(taken) == 2
