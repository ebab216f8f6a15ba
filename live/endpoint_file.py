"""The file of a live endpoint: its replicas, the router in front of them, the canary's policy.

    endpoint = load_endpoint("endpoints/resume.yaml")
    endpoint.stable, endpoint.canary, endpoint.policy.shares

Relative paths are relative to the file's folder, those of sockets and logs to `state_dir`.
"""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from outrider.common.config_errors import explain
from outrider.common.errors import OutriderError
from outrider.common.yaml_tree import Origins, read_yaml
from outrider.live.manifests.cluster import ClusterSettings
from outrider.serving.admin.address import Address
from outrider.serving.admin.live_flags import admin_token

SHIPPED_ENDPOINTS = Path(__file__).resolve().parents[1] / "recipes" / "endpoints"
"""Endpoints that come with the package; a name without a folder is looked up here."""


class Section(BaseModel):
    """A section of the file: unknown keys are errors, values do not change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True
    )


class EndpointReplica(Section):
    """One server, with one copy of the target and its speculator."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    """Name in the journal, the metrics and the router's log."""

    data: str
    """Address that the router sends requests to: `unix:PATH` or `http://HOST:PORT`."""

    admin: str
    """Address of the route that exchanges the speculator (OUTRIDER_ADMIN of the server): a Unix
    socket, or on the loopback interface. Default: `unix:NAME.admin.sock`."""

    role: Literal["stable", "canary"] = "stable"
    """`canary`: a new speculator is served here first."""

    command: str | None = None
    """Command that starts the server, for `deploy-speculator --local`. null: the embedded target
    is started at `data`."""

    @field_validator("data", "admin")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        return str(Address.parse(value))

    @field_validator("admin")
    @classmethod
    def _is_local(cls, value: str) -> str:
        if not Address.parse(value).local:
            raise ValueError(
                "other machines can reach this address; exchange speculators over a Unix socket or"
                " 127.0.0.1 (to another machine: ssh -L)"
            )
        return value


class RouterSettings(Section):
    """Envoy, which shares out the requests."""

    listen: str = "127.0.0.1:8000"
    """Address for the customers' requests: `HOST:PORT` or `unix:PATH`."""

    binary: Path | None = None
    """Envoy's program. null: that of the extra `live`."""

    admin: str = "unix:envoy.sock"
    """Unix socket of Envoy's administration, readable by this user only."""

    access_log: Path = Path("access.log")
    """One line of JSON per request, without its query and its body."""

    sticky_header: str | None = "x-session-id"
    """Requests with an equal value of this header go to the same replica as long as the share of
    the canary does not fall. null: every request is shared out anew."""

    threads: int = Field(default=2, ge=1)
    """Threads that pass requests on. One takes about 2,000 requests/s."""

    @field_validator("listen", "admin")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        return str(Address.parse(value))

    @field_validator("admin")
    @classmethod
    def _is_a_socket(cls, value: str) -> str:
        if not value.startswith("unix:"):
            raise ValueError(
                "only a Unix socket: Envoy's administration has no password; write unix:PATH"
            )
        return value

    @field_validator("sticky_header")
    @classmethod
    def _is_a_header(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not re.fullmatch(r"[A-Za-z0-9!#$&'*+.^_`|~-]+", value):
            raise ValueError("not the name of an HTTP header; such as x-session-id")
        if value.lower() in ("authorization", "cookie", "proxy-authorization"):
            raise ValueError("the access log has this header's value, which must not be a secret")
        return value.lower()


class CanaryPolicy(Section):
    """When a canary gets more requests, is promoted or is rolled back."""

    shares: list[float] = [5.0, 25.0, 100.0]
    """Percent of the requests that the canary gets, step by step. The last one is 100: the stable
    replicas are then exchanged one after another."""

    min_requests: int = Field(default=50, ge=1)
    """Requests of the canary per step before a decision."""

    min_seconds: float = Field(default=60.0, ge=0)
    """Least time of a step, in seconds."""

    max_seconds: float = Field(default=3600.0, gt=0)
    """Longest time of a step, in seconds; then `on_undecided` holds."""

    stall_seconds: float = Field(default=600.0, gt=0)
    """A canary that has requests and ends none of them for so long hangs, and is rolled back."""

    margin: float = Field(default=0.03, gt=0, lt=1)
    """A canary is promoted when its speed, in tokens/s per user, is shown to be above 1 - margin of
    the stable one's."""

    max_error_rate: float = Field(default=0.01, ge=0, le=1)
    """Largest share of failed requests of the canary."""

    max_p50_latency_ratio: float = Field(default=1.1, gt=0)
    """Largest median latency of the canary's requests, relative to the stable ones'."""

    max_p99_latency_ratio: float = Field(default=1.25, gt=0)
    """Largest 99th percentile of the latency, relative to the stable requests'."""

    max_ttft_ratio: float = Field(default=1.2, gt=0)
    """Largest mean time to the first token, relative to the stable requests'."""

    min_acceptance_ratio: float = Field(default=0.95, gt=0)
    """Least acceptance (tokens per step), relative to the stable requests'."""

    watch_requests: int = Field(default=32, ge=0)
    """Requests after an exchange whose acceptance is compared with what the evidence predicts. An
    exchange that falls short is taken back by the replica. At least 2; 0: no comparison."""

    cache: Literal["clear", "keep"] = "clear"
    """Whether an exchange clears prefixes that were cached under the other speculator. `clear`
    pauses for about half a second; `keep` accepts a little less until they age out."""

    keep_releases: int = Field(default=5, ge=2)
    """Releases that are kept for a rollback."""

    on_undecided: Literal["roll_back", "hold"] = "roll_back"
    """What happens when a step ends undecided: back to the old release, or wait for a person."""

    @field_validator("shares")
    @classmethod
    def _rise_to_everything(cls, value: list[float]) -> list[float]:
        rising = all(a < b for a, b in zip([0.0, *value], value, strict=False))
        if not value or not rising or value[-1] != 100:
            raise ValueError("shares rise from above 0 to 100 percent, such as [5, 25, 100]")
        return value

    @field_validator("watch_requests")
    @classmethod
    def _have_a_spread(cls, value: int) -> int:
        if value == 1:
            raise ValueError("one request has no spread; at least 2, or 0 for no comparison")
        return value

    @model_validator(mode="after")
    def _times_in_order(self) -> "CanaryPolicy":
        if self.max_seconds < self.min_seconds:
            raise ValueError(
                f"max_seconds = {self.max_seconds:g} is below min_seconds = {self.min_seconds:g}"
            )
        return self


class Endpoint(Section):
    """A live endpoint."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    """Name in the metrics. Default: the file's."""

    state_dir: Path
    """Folder of the journal, the releases and the router's files; only this user may read it."""

    admin_token_file: Path
    """File of the token that the replicas' `admin` asks for (OUTRIDER_ADMIN_TOKEN_FILE of the
    servers). Whoever comes first writes it. Default: `state_dir/admin.token`."""

    release_roots: list[Path] = []
    """Further folders that the replicas may load speculators from. `state_dir/releases` is always
    one."""

    replicas: list[EndpointReplica]
    """The servers. At least one is `stable`."""

    router: RouterSettings = RouterSettings()
    """The router."""

    policy: CanaryPolicy = CanaryPolicy()
    """The policy."""

    cluster: ClusterSettings = ClusterSettings()
    """What `--manifest` needs to write the same canary for Kubernetes."""

    @field_validator("replicas")
    @classmethod
    def _are_different(cls, value: list[EndpointReplica]) -> list[EndpointReplica]:
        if not any(replica.role == "stable" for replica in value):
            raise ValueError("at least one replica has `role: stable`")
        for what in ("name", "data", "admin"):
            seen = [getattr(replica, what) for replica in value]
            twice = sorted({each for each in seen if seen.count(each) > 1})
            if twice:
                raise ValueError(f"two replicas have {what} {twice[0]}; each needs its own")
        for replica in value:
            if replica.admin in [each.data for each in value]:
                raise ValueError(
                    f"{replica.name}: admin = {replica.admin}: customers' requests go there; the"
                    " route that exchanges speculators needs its own address"
                )
        return value

    @model_validator(mode="after")
    def _router_has_its_own_addresses(self) -> "Endpoint":
        addresses = {each.admin: each.name for each in self.replicas}
        addresses |= {each.data: each.name for each in self.replicas}
        for key in ("listen", "admin"):
            if (address := getattr(self.router, key)) in addresses:
                raise ValueError(
                    f"router.{key} = {address}: the address of replica {addresses[address]}; the"
                    " router needs its own"
                )
        if self.router.listen == self.router.admin:
            raise ValueError(f"router.listen = {self.router.listen}: the address of router.admin")
        return self

    @property
    def stable(self) -> list[EndpointReplica]:
        """The replicas that serve the current release."""
        return [replica for replica in self.replicas if replica.role == "stable"]

    @property
    def canary(self) -> list[EndpointReplica]:
        """The replicas that serve a new release first; may be empty."""
        return [replica for replica in self.replicas if replica.role == "canary"]

    @property
    def releases(self) -> Path:
        """Folder of the releases."""
        return self.state_dir / "releases"

    @property
    def roots(self) -> list[Path]:
        """Folders that the replicas may load speculators from (OUTRIDER_RELEASE_ROOTS)."""
        return [self.releases, *self.release_roots]

    def admin_token(self) -> str:
        """The token of the replicas' `admin`; it and `state_dir` are made where they are not."""
        self.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        return admin_token(self.admin_token_file)


def load_endpoint(name: str | Path, state_dir: Path | None = None) -> Endpoint:
    """The endpoint in a file, or a shipped one by its name (`nano_r1`).

    `state_dir` replaces the file's. A mistake is an `OutriderError` with its place and the fix.
    """
    path = find_endpoint(name)
    values, origins = read_yaml(path, "endpoint")
    origins[()] = str(path)
    values.setdefault("name", path.stem)
    _resolve(values, path.resolve().parent, state_dir, origins)
    try:
        return Endpoint.model_validate(values)
    except ValidationError as error:
        raise OutriderError(explain(error, Endpoint, origins, "an endpoint")) from None


def find_endpoint(name: str | Path) -> Path:
    """The file of an endpoint: a path, or a shipped name."""
    path = Path(name).expanduser()
    if path.exists():
        return path
    shipped = SHIPPED_ENDPOINTS / f"{path.with_suffix('')}.yaml"
    if len(path.parts) == 1 and shipped.is_file():
        return shipped
    included = ", ".join(sorted(each.stem for each in SHIPPED_ENDPOINTS.glob("*.yaml")))
    raise OutriderError(
        f"{name}: no such endpoint; give the path of its file or a shipped name: {included}"
    )


def _resolve(
    values: dict[str, Any], folder: Path, state_dir: Path | None, origins: Origins
) -> None:
    """Makes relative paths absolute, before the values are checked."""

    def absolute(value: Any, parent: Path) -> Any:
        return str(parent / Path(value).expanduser()) if isinstance(value, str) else value

    def socket(section: dict[str, Any], key: str, default: str | None = None) -> None:
        value = section.get(key, default)
        if isinstance(value, str) and value.startswith("unix:") and value != "unix:":
            section[key] = f"unix:{absolute(value.removeprefix('unix:'), state)}"

    for key in ("state_dir", "admin_token_file"):
        if key in values:
            values[key] = absolute(values[key], folder)
    if isinstance(values.get("release_roots"), list):
        values["release_roots"] = [absolute(each, folder) for each in values["release_roots"]]
    if state_dir is not None:
        values["state_dir"] = str(Path(state_dir).absolute())
    given = values.get("state_dir")
    state = Path(given) if isinstance(given, str) else folder  # else pydantic has the message
    values.setdefault("admin_token_file", str(state / "admin.token"))
    for replica in values["replicas"] if isinstance(values.get("replicas"), list) else []:
        if isinstance(replica, dict):
            socket(replica, "data")
            socket(replica, "admin", f"unix:{replica.get('name')}.admin.sock")
    router = values.setdefault("router", {})
    if isinstance(router, dict):
        defaults = RouterSettings()
        router["access_log"] = absolute(router.get("access_log", str(defaults.access_log)), state)
        router.setdefault("binary", None)
        router["binary"] = absolute(router["binary"], folder)
        socket(router, "listen")
        socket(router, "admin", defaults.admin)
