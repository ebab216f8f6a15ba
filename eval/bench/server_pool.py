"""The servers of one engine mode: one without speculation, and one in which base and custom take turns; other kinds have their own.

The same engine started twice can differ by a factor of two on a shared machine. So base and custom are compared in one engine, with
the drafter's weights exchanged between blocks or requests (milliseconds); flags, compiled code and memory are the same for both. Only
the comparison with no speculation crosses engines, and that with a speculator whose weights cannot be exchanged for the base's (an EAGLE-3
head, n-grams). Where the machine holds the servers they are up together; a target that fills its GPUs leaves room for one, and the
servers alternate.

    with open_fleet(target, serving, {"base": target_dir, "custom": speculator_dir}, k=3, mode="eager", log_dir=logs) as fleet:
        for variant in fleet.variants:
            complete(fleet.server(variant).url, ...)
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.server import SETTLE_S, Server
from outrider.serving.speculator import Speculator
from outrider.serving.vllm_hooks.step_recorder import Step, StepFile

PLAIN, SPECULATING = "none", "speculating"


class Fleet:
    """The variants' servers. One stream of requests at a time: `server` may exchange weights, and start and stop servers."""

    def __init__(
        self,
        target: TargetConfig,
        serving: ServingConfig,
        speculators: Mapping[str, Speculator | Path],
        k: int,
        log_dir: Path,
        side_by_side: bool,
    ) -> None:
        """`speculators`: base and custom, as a directory of an MTP layer or as what else they are. Of those that share an engine the first
        is what it loads at its start."""
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
        """Variants that can be asked in turn without starting a server in between."""
        self.server_names = tuple(self._variants_of)
        self._target, self._serving, self._k = target, serving, k
        self._log_dir, self._side_by_side = Path(log_dir), side_by_side
        mode = serving.engine.mode
        self._steps = {
            name: StepFile(self._log_dir / f"steps_{mode}_{name}.jsonl")
            for name in self.server_names
        }
        self._up: dict[str, Server] = {}
        self._loaded: str | None = None
        self._last: str | None = None
        self._fresh: set[str] = set()

    def server(self, variant: str) -> Server:
        """The variant's server, ready, with its weights in place and the other server at rest."""
        name = self._name(variant)
        if name not in self._up:
            if not self._side_by_side:
                self.stop()
            self.start([name])
        elif self._last not in (None, name):
            time.sleep(SETTLE_S)
        self._last = name
        if name == SPECULATING and variant != self._loaded:
            self._up[name].swap_drafter(self._speculators[variant].directory)
            self._loaded = variant
        return self._up[name]

    def engines(self, variants: Sequence[str]) -> list[list[str]]:
        """The variants, those of one server together."""
        return [
            own
            for together in self._variants_of.values()
            if (own := [v for v in variants if v in together])
        ]

    def is_fresh(self, variant: str) -> bool:
        """Whether the variant's server has been started since this was last asked: then it wants warming up."""
        name = self._name(variant)
        fresh = name in self._fresh
        self._fresh.discard(name)
        return fresh

    def new_steps(self, variant: str) -> list[Step]:
        """The steps of the variant's server since this was last asked of it."""
        return self._steps[self._name(variant)].new()

    def start(self, names: list[str]) -> None:
        """Starts servers side by side and waits for all of them."""
        for place, name in enumerate(names):
            first = self._variants_of[name][0]
            server = Server(
                self._target,
                self._steps[name].recorded(self._serving),
                None if name == PLAIN else self._speculators[first],
                None if name == PLAIN else self._k,
                log_path=self._log_dir / f"server_{self._serving.engine.mode}_{name}.log",
                port=self._serving.port and self._serving.port + place,
            )
            self._up[name] = server
            server.start()
        for name in names:
            self._up[name].wait()
            self._fresh.add(name)
        if SPECULATING in names:
            self._loaded = self._variants_of[SPECULATING][0]

    def restart(self) -> None:
        """Ends whatever is up and starts it anew."""
        self.stop()
        if self._side_by_side:
            self.start([*self.server_names])

    def _name(self, variant: str) -> str:
        """The server of a variant: those without speculation share one, those whose weights can be exchanged another."""
        speculator = self._speculators[variant]
        if not speculator.speculates:
            return PLAIN
        return SPECULATING if speculator.has_unroll else variant

    def stop(self) -> None:
        """Ends whatever is up."""
        while self._up:
            _, server = self._up.popitem()
            server.stop()
        self._last = None


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
    """The fleet of one engine mode; every server is ended outside. Flags differ in the speculator alone."""
    serving = serving.with_engine(mode=mode)
    fleet = Fleet(target, serving, speculators, k, log_dir, side_by_side)
    try:
        fleet.restart()
        yield fleet
    finally:
        fleet.stop()
