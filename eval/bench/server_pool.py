"""The servers of one engine mode: one without speculation, and one that base and custom share.

    with open_fleet(target, serving, speculators, k=3, mode="eager", log_dir=logs) as fleet:
        for variant in fleet.variants:
            complete(fleet.server(variant).url, ...)

The same engine started twice can differ by a factor of two on a shared machine. So base and custom
are compared in one engine, whose drafter weights are exchanged between blocks or requests in
milliseconds; flags, compiled code and memory are the same for both. Only the comparison with no
speculation crosses engines, as does that with a speculator whose weights cannot be exchanged (an
EAGLE-3 head, n-grams). Where the machine holds them, all servers are up at once. A target that
fills its GPUs leaves room for one, and the servers alternate.

Without `k` the speculating server rotates through 1..depth drafts, for eval/bench/step_timing.py,
and `draft` fixes the number for everything after. Servers start in the background: `server` waits
for the one it returns.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType

from outrider.common.errors import OutriderError
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.server import SETTLE_S, Server
from outrider.serving.speculator import Speculator
from outrider.serving.vllm_hooks.step_recorder import Step, StepFile
from outrider.serving.vllm_hooks.version import runs_on_cpu

PLAIN, SPECULATING = "none", "speculating"


class Fleet:
    """The variants' servers.

    For one stream of requests at a time: `server` may exchange weights, and start and stop servers.
    """

    def __init__(
        self,
        target: TargetConfig,
        serving: ServingConfig,
        speculators: Mapping[str, Speculator | Path],
        k: int | None,
        log_dir: Path,
        side_by_side: bool,
        depth: int | None = None,
    ) -> None:
        """`speculators` are base and custom.

        Of those that share an engine, the first is loaded at its start. `k` None needs `depth`, the
        largest number of drafts.
        """
        self._speculators = {PLAIN: Speculator("none")} | {
            v: Speculator.of(each) for v, each in speculators.items()
        }
        self.variants = tuple(self._speculators)
        self._variants_of: dict[str, list[str]] = {}
        for variant in self.variants:
            self._variants_of.setdefault(self._name(variant), []).append(variant)
        self.groups = (
            (self.variants,) if side_by_side else tuple(map(tuple, self._variants_of.values()))
        )
        """Variants that can be measured in turn without starting a server in between."""
        self.server_names = tuple(self._variants_of)
        self._target, self._serving, self._k, self._depth = target, serving, k, depth
        self._log_dir, self._side_by_side = Path(log_dir), side_by_side
        mode = serving.engine.mode
        self._steps = {
            name: StepFile(self._log_dir / f"steps_{mode}_{name}.jsonl")
            for name in self.server_names
        }
        self._up: dict[str, Server] = {}
        self._starting: Future[None] | None = None
        self._lock, self._cancelled = threading.Lock(), False
        self._loaded: str | None = None
        self._last: str | None = None
        self._fresh: set[str] = set()

    def server(self, variant: str) -> Server:
        """The variant's server: ready, its weights in place, and the other server idle."""
        self._started()
        name = self._name(variant)
        if name not in self._up:
            if not self._side_by_side:
                self.stop()
            self.start([name])
        elif self._last not in (None, name):
            time.sleep(SETTLE_S)
        self._last = name
        if name == SPECULATING and variant != self._loaded:
            directory = self._speculators[variant].directory
            assert directory is not None  # variants of this server have weights
            self._up[name].swap_drafter(directory)
            self._loaded = variant
        return self._up[name]

    def draft(self, k: int) -> None:
        """Fixes the number of drafts of the speculating servers.

        A server that rotates through them stays up where that changes nothing: at its largest
        number, and on a CPU. On a GPU a schedule of drafts changes which CUDA graphs are captured.
        Else it is stopped, and started with k drafts when it is next needed.
        """
        if k == self._k:
            return
        self._started()
        stays = self._k is None and k == self._depth and runs_on_cpu()
        self._k = k
        for name in self.server_names:
            if name == PLAIN or name not in self._up:
                continue
            if stays:
                self._steps[name].fix_drafts(k)
            else:
                self._up.pop(name).stop()

    def engines(self, variants: Sequence[str]) -> list[list[str]]:
        """The variants, grouped by server."""
        by_server = (
            [variant for variant in variants if variant in together]
            for together in self._variants_of.values()
        )
        return [own for own in by_server if own]

    def needs_warm_up(self, variant: str) -> bool:
        """Whether the variant's server is up and has not been warmed up."""
        return self._name(variant) in self._fresh

    def is_fresh(self, variant: str) -> bool:
        """Like `needs_warm_up`, but true only once after each start."""
        name = self._name(variant)
        fresh = name in self._fresh
        self._fresh.discard(name)
        return fresh

    def new_steps(self, variant: str) -> list[Step]:
        """The steps of the variant's server since the last call."""
        return self._steps[self._name(variant)].new()

    def start(self, names: Sequence[str]) -> None:
        """Starts servers side by side and waits for all of them."""
        launched = {name: self._launch(name, place) for place, name in enumerate(names)}
        for name, server in launched.items():
            server.wait()
            self._fresh.add(name)
        if SPECULATING in names:
            self._loaded = self._variants_of[SPECULATING][0]

    def start_in_background(self) -> None:
        """Starts all servers where they can be up at once; `server` waits for them."""
        if not self._side_by_side:
            return
        pool = ThreadPoolExecutor(1, thread_name_prefix="servers")
        self._starting = pool.submit(self.start, self.server_names)
        pool.shutdown(wait=False)

    def restart(self) -> None:
        """Stops all servers and starts them again."""
        self.stop()
        if self._side_by_side:
            self.start(self.server_names)

    def stop(self) -> None:
        """Stops all servers, those that are still starting as well."""
        starting, self._starting = self._starting, None
        with self._lock:
            self._cancelled = starting is not None
        while self._up:
            _, server = self._up.popitem()
            server.stop()
        if starting is not None:
            wait([starting])  # its server has ended, so it does not wait for that any longer
        self._last, self._cancelled = None, False

    def _launch(self, name: str, place: int) -> Server:
        with self._lock:
            if self._cancelled:
                raise OutriderError(f"server {name}: not started, the evaluation was stopped")
            server = self._new_server(name, place)
            server.start()
            self._up[name] = server
            return server

    def _started(self) -> None:
        """Waits for the start in the background; its error is raised here."""
        if self._starting is not None:
            starting, self._starting = self._starting, None
            starting.result()

    def _new_server(self, name: str, place: int) -> Server:
        engine, port = self._serving.engine, self._serving.port
        rotates = name != PLAIN and self._k is None
        k = self._depth if rotates else self._k
        schedule = [(1, engine.max_num_seqs, k)] if rotates and k is not None else None
        return Server(
            self._target,
            self._steps[name].recorded(self._serving),
            None if name == PLAIN else self._speculators[self._variants_of[name][0]],
            None if name == PLAIN else k,
            log_path=self._log_dir / f"server_{engine.mode}_{name}.log",
            port=port and port + place,
            k_per_batch_size=schedule,
        )

    def _name(self, variant: str) -> str:
        """Name of the variant's server.

        Variants without speculation share one, and those whose weights can be exchanged another.
        """
        speculator = self._speculators[variant]
        if not speculator.speculates:
            return PLAIN
        return SPECULATING if speculator.has_unroll else variant


@contextlib.contextmanager
def open_fleet(
    target: TargetConfig,
    serving: ServingConfig,
    speculators: Mapping[str, Speculator | Path],
    k: int,
    mode: str,
    log_dir: Path,
    side_by_side: bool = True,
) -> Iterator[Fleet]:
    """The servers of one engine mode, with k drafts; they are stopped at the end."""
    serving = serving.with_engine(mode=mode)
    fleet = Fleet(target, serving, speculators, k, log_dir, side_by_side)
    try:
        fleet.restart()
        yield fleet
    finally:
        fleet.stop()


class ServerPool:
    """The servers of an evaluation, started once for step timing, verification and blocks.

    One engine mode is up at a time, until another is needed.
    """

    def __init__(
        self,
        target: TargetConfig,
        serving: ServingConfig,
        speculators: Mapping[str, Speculator | Path],
        depth: int,
        log_dir: Path,
        side_by_side: bool = True,
    ) -> None:
        self._target, self._serving, self._speculators = target, serving, speculators
        self._depth, self._log_dir, self._side_by_side = depth, log_dir, side_by_side
        self._fleet: Fleet | None = None
        self._mode: str | None = None

    def fleet(self, mode: str, k: int | None = None) -> Fleet:
        """The servers of `mode`, with k drafts or, without k, rotating through 1..depth.

        They start in the background, unless they are up.
        """
        if self._fleet is None or self._mode != mode:
            self.close()
            serving = self._serving.with_engine(mode=mode)
            self._fleet = Fleet(
                self._target,
                serving,
                self._speculators,
                k,
                self._log_dir,
                self._side_by_side,
                self._depth,
            )
            self._mode = mode
            self._fleet.start_in_background()
        elif k is not None:
            self._fleet.draft(k)
        return self._fleet

    def close(self) -> None:
        """Stops the servers that are up or starting."""
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            fleet.stop()

    def __enter__(self) -> "ServerPool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
