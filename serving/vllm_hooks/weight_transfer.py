"""vLLM's weight transfer engine `safetensors`: swaps the speculator of a live engine.

    vllm serve ... --weight-transfer-config '{"backend": "safetensors"}'

The plugin registers it (plugin.py). A session of vLLM's draft weight update does it, all of it
inside `receive_weights`: either the new speculator is in place afterwards, or the old one. The
files are opened, hashed and checked first (serving/admin/candidate.py), in the background where
`init_transfer_engine` named them. Start and finish do nothing, because layers that are on the meta
device in between end the engine with the next request.

A failure while loading leaves layers half new, and no copy of the parameters brings the old ones
back: a CPU's packed weights are not parameters. So the last good files are loaded again. Where that
fails too, also because they have changed since, the report has `broken` until a load succeeds.

Whoever uses the interface calls `swap` (swap.py), which also asks each worker for its
report: with several workers, vLLM 0.32 leaves the answers of the others unread where one raises.
"""

import dataclasses
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.v1.worker.gpu_worker import Worker

from outrider.common.threads import in_daemon_thread
from outrider.serving.admin.candidate import (
    Candidate,
    checked,
    directory_files,
    in_service,
    release_files,
)
from outrider.serving.vllm_hooks.drafter_swap import context_copies, replace_weights
from outrider.serving.vllm_hooks.swap import Report


@dataclasses.dataclass
class Source(WeightTransferInitInfo):
    """A speculator to read and check in the background."""

    directory: str | None = None
    root: str | None = None
    """The release root that it must be below; None trusts the directory as it is."""
    digest: str = ""
    """`bundle_digest` of a release."""


@dataclasses.dataclass
class Swap(WeightTransferUpdateInfo):
    """The speculator to load."""

    directory: str
    root: str | None = None
    digest: str = ""
    swap_id: str = ""
    """Identifies the swap, for `speculator_take_back`."""
    quiet: bool = False
    """Failures are in the report only."""


class SafetensorsTransfer(WeightTransferEngine[Source, Swap]):
    """Swaps the draft model for one in a directory of safetensors."""

    init_info_cls = Source
    update_info_cls = Swap

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.worker: Any = None
        self.current: Candidate | None = None
        self.previous: Candidate | None = None
        self.swap_id = ""
        self.error: str | None = None
        self.broken: str | None = None
        self.read_s = self.apply_s = 0.0
        self._staged: tuple[tuple[str, str | None, str], Future[Candidate]] | None = None
        self._copies: dict[str, torch.Tensor] | None = None
        speculative: Any = self.vllm_config.speculative_config
        self._k: int | None = speculative.num_speculative_tokens if speculative else None
        self._draft_config = speculative.draft_model_config if speculative else None
        parallel = self.vllm_config.parallel_config
        if parallel.data_parallel_size > 1 or parallel.enable_eplb:
            self._unknown = (
                "a speculator is not swapped in an engine with data parallelism, of which vLLM"
                " reports one rank only, or with EPLB, which moves experts; start the server with"
                " the other speculator"
            )
            _add_worker_methods()
            return
        try:
            self.current = in_service(Path(speculative.model if speculative else ""))
        except Exception as error:  # the engine serves in any case
            self._unknown = f"the speculator in use cannot be read, so not swapped: {error}"
        _add_worker_methods()

    def init_transfer_engine(self, init_info: Source) -> None:
        """Begins to read and check a speculator in the background."""
        self._staged = None
        if init_info.directory is not None:
            key = (init_info.directory, init_info.root, init_info.digest)
            self._staged = key, in_daemon_thread(self.check, *key)

    def start_weight_update(self) -> None:
        """Does nothing: layers stay unchanged until the weights have arrived."""

    def receive_weights(self, update_info: Swap) -> None:
        """Replaces the speculator, or raises (or reports) and leaves the one in use."""
        if self.model is self._default_model:
            raise ValueError(
                "this weight transfer engine swaps the draft model only:"
                " /start_draft_weight_update begins an update of it"
            )
        self.error = None
        try:
            self._replace(self._candidate(update_info))
            self.swap_id = update_info.swap_id
        except Exception as error:
            self.error = str(error) or repr(error)
            if not update_info.quiet:
                raise

    def finish_weight_update(self) -> None:
        """Does nothing: the weights are in place."""

    def shutdown(self) -> None:
        """Does nothing: no file is held open."""

    def take_back(self, swap_id: str) -> None:
        """Loads the speculator from before a swap again, if that one took place."""
        if swap_id != self.swap_id or self.previous is None:
            return
        try:
            self._load(self.previous)
        except Exception as error:
            self.error = self.broken = f"not taken back: {self._restored(error)}"
            return
        self.current, self.previous, self.swap_id, self.broken = self.previous, None, "", None

    def report(self) -> Report:
        """What this worker drafts with, and how the last swap went."""
        current = self.current
        reading = self._staged[1] if self._staged is not None else None
        failed = reading.exception() if reading is not None and reading.done() else None
        return {
            "directory": str(current.directory) if current is not None else "",
            "kind": current.kind.name if current is not None else "",
            "digest": current.digest if current is not None else "",
            "read_s": self.read_s,
            "apply_s": self.apply_s,
            "staged": reading is None or reading.done(),
            "staging_error": (str(failed) or repr(failed)) if failed is not None else None,
            "error": self.error if current is not None else self._unknown,
            "broken": self.broken,
        }

    def check(self, directory: str, root: str | None, digest: str) -> Candidate:
        """Opens and checks a speculator; an `OutriderError` says what is wrong with it."""
        if self.current is None:
            raise ValueError(self._unknown)
        began, path = time.perf_counter(), Path(directory)
        files = directory_files(path) if root is None else release_files(path, Path(root), digest)
        target = Path(self._default_model_config.model)
        target_dir = target if target.is_dir() else None
        candidate = checked(files, self.current, target_dir, self._k, digest)
        self.read_s = time.perf_counter() - began
        return candidate

    def _candidate(self, wanted: Swap) -> Candidate:
        """The speculator that was read in the background, or else read now."""
        staged, self._staged = self._staged, None
        key = (wanted.directory, wanted.root, wanted.digest)
        if staged is not None and staged[0] == key:
            return staged[1].result()
        return self.check(*key)

    def _replace(self, new: Candidate) -> None:
        began = time.perf_counter()
        try:
            self._load(new)
            if late := new.files.changed():
                raise RuntimeError(f"{new.directory / late[0]}: written to while it was loaded")
        except BaseException as error:
            raise RuntimeError(self._restored(error)) from error
        self.previous, self.current, self.broken = self.current, new, None
        self.apply_s = time.perf_counter() - began

    def _restored(self, error: BaseException) -> str:
        """Reloads the speculator in use; returns the message of the error that made this
        necessary."""
        try:
            assert self.current is not None
            self._load(self.current)
        except Exception as second:
            self.broken = (
                f"{error}; and then the speculator in use could not be loaded again: {second};"
                " drafts are wrong until the replica is started again"
            )
            return self.broken
        return str(error) or repr(error)

    def _load(self, candidate: Candidate) -> None:
        runner = self.worker.model_runner
        drafter = runner.get_draft_model()
        if self._copies is None:
            self._copies = context_copies(drafter.model)
        replace_weights(
            runner, drafter, self._draft_config, candidate.kind, candidate.tensors(), self._copies
        )


def speculator_report(worker: Any) -> Report:
    """Worker method: the speculator in use and the last swap."""
    return _engine(worker).report()


def speculator_take_back(worker: Any, swap_id: str) -> Report:
    """Worker method: undoes a swap by its id, if it took place on this worker."""
    engine = _engine(worker)
    with set_current_vllm_config(worker.vllm_config):
        engine.take_back(swap_id)
    return engine.report()


def _engine(worker: Any) -> SafetensorsTransfer:
    engine = worker.weight_transfer_engine
    if not isinstance(engine, SafetensorsTransfer):
        raise RuntimeError("start the server with --weight-transfer-config of live_flags.py")
    engine.worker = worker
    return engine


def _add_worker_methods() -> None:
    """Gives vLLM's worker the methods above. A weight transfer engine does not know its worker."""
    if hasattr(Worker, speculator_report.__name__):
        return
    start = Worker.start_draft_weight_update

    def start_draft_weight_update(worker: Any) -> None:
        _engine(worker)
        start(worker)

    for method in (speculator_report, speculator_take_back, start_draft_weight_update):
        setattr(Worker, method.__name__, method)
