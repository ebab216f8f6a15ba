"""Servers of an evaluation: one without speculation, one for base and custom.

    numbers = {"base": range(1, 4), "custom": range(1, 4)}
    with Servers(target, serving, speculators, numbers=numbers, log_dir=logs) as servers:
        server = servers.server("eager", "base", drafts=3)
        complete(server.url, ...)

Two launches of an engine differ in serving speed. So base and custom are compared in one engine,
whose drafter weights are swapped in milliseconds between blocks or requests. Another engine is
needed only for the reference without speculation, or if base and custom cannot swap weights (their
kinds or shapes differ, or one of them has no weights).

An engine starts with a schedule that contains all measured numbers of drafts, and `server` sets the
number before each turn (serving/vllm_hooks/drafts_file.py). An engine set to k is as fast as one
started with k (benchmarks/results/serving.md). With data parallelism or EPLB, neither the number
nor the weights can change, so every combination of number and speculator has a separate server.

Servers start on first use, or before, with `prepare`. If the machine has room, they run side by
side. A target that fills the GPUs leaves room for only one, so the servers alternate. All servers
use the same GPUs.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from outrider.eval.results.parts import CURRENT
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.server import Server
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_hooks.drafts_file import DraftCountFile, Drafts

USABLE = 0.95
"""Usable share of a GPU's memory; other processes and fragmentation take the rest."""

OVERHEAD = 1.5 * 2**30
"""Assumed bytes of an engine besides weights and KV cache: CUDA context, activations, graphs."""

PLAIN, SHARED = "none", "speculating"
"""Names of the server without speculation and of the one whose weights are swapped."""

Turn = tuple[str, Drafts | None]
"""A variant and its drafts per step."""
SomeDrafts = TypeVar("SomeDrafts", bound=Drafts | None)


@dataclass
class _Running:
    server: Server
    numbers: tuple[int, ...]
    """Values of K (drafts per step) that the server was started with."""
    file: DraftCountFile
    loaded: Path | None
    """Directory of the server's current weights."""


class Servers(AbstractContextManager["Servers"]):
    """Variants' servers, for one engine mode and request stream at a time."""

    def __init__(
        self,
        target: TargetConfig,
        serving: ServingConfig,
        speculators: Mapping[str, Speculator],
        *,
        numbers: Mapping[str, Sequence[int]],
        log_dir: Path,
        side_by_side: bool = True,
        warm_up: Callable[[Server], None] = lambda server: None,
        sample_method: str = "greedy",
    ) -> None:
        """`numbers` are the possible numbers of drafts per step of each variant.

        `warm_up` sends a started server its first requests.
        """
        self._speculators = {PLAIN: Speculator("none"), **speculators}
        self._apart = not serving.engine.changes_drafters
        """Whether each combination of speculator and number of drafts has its own server."""
        self._sharing = set() if self._apart else _sharing(self._speculators)
        self._target = target
        self._serving = serving
        self._numbers = {variant: tuple(sorted(row)) for variant, row in numbers.items()}
        self._aliases: dict[str, str] = {}
        self._log_dir = Path(log_dir)
        self._side_by_side = side_by_side
        self._warm_up = warm_up
        self._sample_method = sample_method
        if side_by_side and (reason := self._too_large()):
            print(reason, file=sys.stderr, flush=True)
            self._side_by_side = False
        self._mode: str | None = None
        self._up: dict[str, _Running] = {}

    def server(self, mode: str, variant: str, drafts: Drafts | None = None) -> Server:
        """Returns the variant's running server, set to its weights and `drafts`.

        Call this before every block: it empties the prefix cache, as a swap does. Otherwise a
        variant that follows another with the same weights would reuse cached prompts. What they
        find in production is computed again by `ProductionCache.restore`.
        """
        self._change_mode(mode)
        name = self.name(variant)
        numbers = self._numbers_of(variant, drafts)
        running = self._up.get(name)
        if running is None or running.numbers != numbers:
            self.stop(None if not self._side_by_side else name)
            running = self._launch(name, variant, numbers)
            self._await(running)
        if drafts is not None and len(numbers) > 1:
            running.file.draft(drafts)
        directory = self._speculator(variant).directory
        if name == SHARED and directory is not None and directory != running.loaded:
            running.server.swap(directory)
            running.loaded = directory
        else:
            running.server.reset_prefix_cache()
        return running.server

    def prepare(self, mode: str, turns: Sequence[tuple[str, Drafts | None]]) -> None:
        """Starts the missing servers of the next `turns` at the same time.

        Three engines that start together take less time than in turn: on two cores 113 instead of
        210 s (eager, a busy machine), 130 instead of about 160 s (compiled). With GPUs they
        start in turn, on first use: a starting engine measures the memory that is free, and another
        start would change it.
        """
        if not self._side_by_side or gpu_memory(self._serving.engine.gpus) is not None:
            return
        self._change_mode(mode)
        launched = []
        for variant, drafts in turns:
            name = self.name(variant)
            if name not in self._up:
                numbers = self._numbers_of(variant, drafts)
                launched.append(self._launch(name, variant, numbers))
        for running in launched:
            self._await(running)

    def alias(self, alias: str, variant: str) -> None:
        """Makes `alias` another name of the variant."""
        self._aliases[alias] = variant

    def groups(self, turns: Sequence[tuple[str, SomeDrafts]]) -> list[list[tuple[str, SomeDrafts]]]:
        """Groups turns that can alternate without starting a server in between."""
        by_server: dict[tuple[str, tuple[int, ...]], list[tuple[str, SomeDrafts]]] = {}
        for variant, drafts in turns:
            start = (self.name(variant), self._numbers_of(variant, drafts))
            by_server.setdefault(start, []).append((variant, drafts))
        if self._side_by_side and len({name for name, _ in by_server}) == len(by_server):
            return [[*turns]]
        return list(by_server.values())

    def name(self, variant: str) -> str:
        """Name of the variant's server; variants with swappable weights share one."""
        if not self._speculator(variant).speculates:
            return PLAIN
        variant = self._aliases.get(variant, variant)
        drafter = variant if self._apart or variant in self._speculators else "base"
        return SHARED if drafter in self._sharing else drafter

    def stop(self, name: str | None = None) -> None:
        """Stops the named server, or all servers."""
        stopped = (
            [*self._up] if name is None else [running for running in self._up if running == name]
        )
        for running in stopped:
            self._up.pop(running).server.stop()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _too_large(self) -> str | None:
        """Why the servers do not fit the GPUs together; None if they do, or without GPUs.

        A server starts only if its share of the GPU's memory is free (vllm/v1/worker/utils.py,
        `request_memory`), also if `kv_cache_gb` limits what it then allocates.
        """
        engine = self._serving.engine
        memory = gpu_memory(engine.gpus)
        if memory is None:
            return None
        variants = [*self._speculators]
        if "base" in self._speculators:
            variants.append(CURRENT)
        servers = len({self.name(variant) for variant in variants})
        share = engine.gpu_memory_utilization * memory
        used = share
        if engine.kv_cache_gb is not None:
            # With `kv_cache_gb`, vLLM allocates less than its share (v1/worker/utils.py:716 checks
            # the share).
            used = self._largest_weights() + engine.kv_cache_gb * 2**30 + OVERHEAD
        # The last server to start still needs its whole share to be free.
        if (servers - 1) * used + max(share, used) <= USABLE * memory:
            return None
        return (
            f"eval.side_by_side: a GPU of {memory / 1e9:.0f} GB has no room for {servers}"
            f" servers with serving.engine.gpu_memory_utilization ="
            f" {engine.gpu_memory_utilization:g}, so they run one at a time"
        )

    def _largest_weights(self) -> float:
        """Bytes per GPU of the target and the largest speculator with a directory of its own."""
        directories = {speculator.directory for speculator in self._speculators.values()}
        separate = directories - {self._target.directory()}
        sizes = [weight_bytes(directory) for directory in separate if directory is not None]
        target = weight_bytes(self._target.directory())
        return (target + max(sizes, default=0)) / self._serving.engine.gpus

    def _change_mode(self, mode: str) -> None:
        if mode != self._mode:
            self.stop()
            self._mode = mode

    def _launch(self, name: str, variant: str, numbers: tuple[int, ...]) -> _Running:
        """Starts the variant's server without waiting for it."""
        assert self._mode is not None
        engine = self._serving.engine.model_copy(update={"mode": self._mode})
        speculator = self._speculator(variant)
        # vLLM has no request for it: the hook reads the number from a file before each step.
        file = DraftCountFile(self._log_dir / f"drafts_{self._mode}_{name}.json")
        schedule = None
        if len(numbers) > 1:
            # CUDA graphs are captured at the start, for the numbers in the schedule only.
            schedule = covering_schedule(numbers, engine.seats)
            engine = file.engine_settings(engine)
        drafting = None
        if numbers:
            drafting = Drafting(speculator, max(numbers), self._sample_method, schedule)
        log = self._log_dir / f"server_{self._mode}_{name}.log"
        server = Server(self._target, engine, drafting, log_path=log)
        print(f"starting the server {self._mode}_{name}", file=sys.stderr, flush=True)
        server.launch()
        self._up[name] = _Running(server, numbers, file, speculator.directory)
        return self._up[name]

    def _await(self, running: _Running) -> None:
        """Waits until a launched server is healthy and warm."""
        running.server.wait_until_healthy()
        self._warm_up(running.server)

    def _numbers_of(self, variant: str, drafts: Drafts | None) -> tuple[int, ...]:
        """The numbers of drafts that the variant's server is started with."""
        speculator = self._speculator(variant)
        if not speculator.speculates:
            return ()
        if isinstance(drafts, int) and (self._apart or speculator.drafter_kind.fixed_k):
            return (drafts,)
        return self._numbers[self._known(variant)]

    def _speculator(self, variant: str) -> Speculator:
        """Returns the variant's speculator."""
        return self._speculators[self._known(variant)]

    def _known(self, variant: str) -> str:
        """The variant's name in `speculators`; `CURRENT` (results/parts.py) is base."""
        variant = self._aliases.get(variant, variant)
        return variant if variant in self._speculators else "base"


def gpu_memory(gpus: int) -> int | None:
    """Bytes of the smallest of the first `gpus` GPUs, which servers use; None without GPUs."""
    import torch

    indices = range(min(gpus, torch.cuda.device_count()))
    memories = [torch.cuda.get_device_properties(index).total_memory for index in indices]
    return min(memories, default=None)


def weight_bytes(directory: Path) -> int:
    """Size of a checkpoint's weights."""
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


def _sharing(speculators: Mapping[str, Speculator]) -> set[str]:
    """The last trainable variant and those that can swap weights with it."""
    trainable = [name for name, speculator in speculators.items() if speculator.trainable]
    if not trainable:
        return set()
    last = trainable[-1]
    swapping = {name for name in trainable if speculators[last].swaps_with(speculators[name])}
    return {last} | swapping


def covering_schedule(numbers: Sequence[int], seats: int) -> list[tuple[int, int, int]]:
    """A schedule that contains all `numbers`; most batch sizes get the largest.

    vLLM captures CUDA graphs for the numbers in its schedule, so each must occur in it.
    """
    *smaller, most = sorted(numbers)
    rows = [(size, size, number) for size, number in enumerate(smaller[: seats - 1], 1)]
    return [*rows, (len(rows) + 1, seats, most)]
