"""The endpoint file: the replicas, the router in front of them, and the canary policy.

    endpoint = load_endpoint("endpoints/resume.yaml")
    endpoint.stable, endpoint.canary, endpoint.policy.shares

Paths are relative to the file's folder; those of sockets and logs are relative to `state_dir`.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from outrider.common.config_file import explain, read_yaml
from outrider.common.errors import OutriderError
from outrider.serving.admin.address import Address
from outrider.serving.admin.live_flags import admin_token

SOURCE = r"(hf|s3|gs|oci|pvc)://[A-Za-z0-9][A-Za-z0-9._:@/+-]*"
"""Pattern of the addresses from which a pod can read a model."""

SHIPPED_ENDPOINTS = Path(__file__).resolve().parents[1] / "recipes" / "endpoints"
"""Endpoints that come with the package; a name without a folder is looked up here."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]

Role = Literal["stable", "canary"]


def _address(text: str, info: ValidationInfo[Path | None]) -> str:
    """Validates an address; resolves relative socket paths against the context's `state_dir`."""
    if info.context is not None and text.startswith("unix:") and text != "unix:":
        text = f"unix:{info.context / Path(text.removeprefix('unix:')).expanduser()}"
    return str(Address.parse(text))


AnyAddress = Annotated[str, AfterValidator(_address)]

SocketAddress = Annotated[AnyAddress, AfterValidator(lambda text: str(Address.parse_socket(text)))]


class Section(BaseModel):
    """An immutable section of the file; unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True
    )


class EndpointReplica(Section):
    """One server, with one copy of the target and its speculator."""

    name: Name
    """Name in the journal, the metrics and the router's log."""

    data: AnyAddress
    """Address that the router sends requests to: `unix:PATH` or `http://HOST:PORT`."""

    admin: SocketAddress = Field(default_factory=lambda data: f"unix:{data.get('name')}.admin.sock")
    """Address of the route that swaps the speculator (the server's OUTRIDER_ADMIN): a Unix
    socket. Default: `unix:NAME.admin.sock`."""

    role: Role = "stable"
    """`canary`: a new speculator is served here first."""


class RouterSettings(Section):
    """Envoy, which distributes the requests."""

    listen: AnyAddress = "127.0.0.1:8000"
    """Address for the customers' requests: `HOST:PORT` or `unix:PATH`."""

    sticky_header: str = Field(default="x-session-id", pattern=r"^[a-z0-9!#$&'*+.^_`|~-]+$")
    """Header name in lower case. Requests with the same value go to the same replica as long as
    the canary's share stays the same, and are one unit when the canary is compared. If users gain
    differently from a release, name a header that has the user."""

    @field_validator("sticky_header")
    @classmethod
    def _is_no_secret(cls, value: str) -> str:
        if value in ("authorization", "cookie", "proxy-authorization"):
            raise ValueError("the access log has this header's value, which must not be a secret")
        return value


class CanaryPolicy(Section):
    """Conditions for raising a canary's share, promoting it or rolling it back."""

    shares: list[float] = [5.0, 25.0, 100.0]
    """The canary's percentage of requests in each step, ending with 100. The controller caps it at
    the fair share; to reach 100, it swaps the stable replicas in turn after the verdict."""

    baseline_requests: int = Field(default=1000, ge=1)
    """Number of canary requests before the swap, at the fair share and with the old release. They
    show how much faster or slower the canary's replicas and users are; the decision corrects for
    this. Requests whose counts the replicas still hold are included; the test waits at most
    max_seconds for the rest. A canary that looks slower is measured like this a second time, with
    the old release, before it is rolled back for its speed."""

    min_requests: int = Field(default=50, ge=1)
    """Minimum number of canary requests before a step passes."""

    min_seconds: float = Field(default=60.0, ge=0)
    """Minimum duration of a step, in seconds."""

    max_seconds: float = Field(default=3600.0, gt=0)
    """Maximum duration of a step, in seconds; an undecided canary is then rolled back."""

    margin: float = Field(default=0.03, gt=0, lt=1)
    """A promotion requires evidence that tokens/s per user exceed (1 - margin) x stable's."""

    max_error_rate: float = Field(default=0.01, ge=0, le=1)
    """Maximum failure rate of the canary; the controller raises it to twice stable's rate if
    that is higher. Above it, three or more failures cause a rollback."""

    max_p99_latency_ratio: float = Field(default=1.25, gt=0)
    """Maximum 99th-percentile latency, relative to stable requests, for a promotion."""

    max_ttft_ratio: float = Field(default=1.2, gt=0)
    """Maximum median time to first token, relative to stable requests, for a promotion."""

    min_acceptance_ratio: float = Field(default=0.95, gt=0)
    """Minimum acceptance (tokens per step), relative to stable requests, for a promotion. A
    replica's watch reverts a release that falls below this share of the predicted acceptance."""

    watch_requests: int = Field(default=32, ge=0)
    """Number of requests after a swap whose acceptance is compared with the value that the bundle's
    evidence predicts. The replica reverts a swap that falls short. 0: no comparison."""

    @field_validator("shares")
    @classmethod
    def _rise_to_everything(cls, value: list[float]) -> list[float]:
        rising = all(a < b for a, b in zip([0.0, *value], value, strict=False))
        if not value or not rising or value[-1] != 100:
            raise ValueError("shares rise from above 0 to 100 percent, such as [5, 25, 100]")
        return value


class ClusterSettings(Section):
    """Model sources and object settings for a Kubernetes cluster."""

    namespace: str = Field(default="default", pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    """Namespace of all objects."""

    model: str | None = Field(default=None, pattern=f"^{SOURCE}$")
    """Address of the target for the pods: `hf://`, `s3://`, `gs://`, `oci://` or
    `pvc://CLAIM/PATH`. If null: `hf://` followed by the bundle's `target.model`, at its
    revision."""

    speculator: str | None = Field(default=None, pattern=f"^{SOURCE}$")
    """Address of the new bundle, in the same forms. null: the one given to `outrider deploy`."""

    stable: str | None = Field(default=None, pattern=f"^({SOURCE}|own|none)$")
    """Speculator of KServe's stable group: the address of the bundle in use, `own` (the target's
    own drafter) or `none` (no speculation). An Argo Rollout keeps its current one."""

    image: str | None = None
    """Container image with vLLM. null: `vllm/vllm-openai` at the version used in the evaluation."""

    service_account: str | None = None
    """Service account of the pods, with credentials for the model store. null: the namespace's
    default."""

    api_key_secret: str | None = None
    """Secret whose entry `api-key` becomes the server's key. null: no key."""

    gateway: str = "outrider"
    """Gateway (Gateway API) that an Argo Rollout's HTTPRoute belongs to."""

    prometheus: str = "http://prometheus.monitoring.svc:9090"
    """Address of the Prometheus server that an Argo Rollout's analysis reads."""

    verdict: Literal["limits", "controller"] = "limits"
    """Criterion that promotes an Argo Rollout. `limits`: ratios of vLLM's metrics, compared with
    the policy's fixed limits once per step. `controller`: the sequential test of an Outrider
    controller whose metrics Prometheus reads (`outrider_canary_verdict`); exceeding a limit still
    aborts the rollout."""


class Endpoint(Section):
    """A live endpoint."""

    name: Name
    """Name in the metrics. Default: the file name without suffix."""

    state_dir: Path
    """Folder of the journal, the releases and the router's files; only this user may read it."""

    replicas: list[EndpointReplica]
    """The servers. At least one is `stable`."""

    router: RouterSettings = RouterSettings()
    """Settings of the router."""

    policy: CanaryPolicy = CanaryPolicy()
    """Policy of the canary."""

    cluster: ClusterSettings = ClusterSettings()
    """Settings for `--manifest`, which writes the same canary for Kubernetes."""

    @model_validator(mode="after")
    def _replicas_are_different(self) -> "Endpoint":
        if not self.stable:
            raise ValueError("replicas: at least one has `role: stable`")
        used = [str(Address.parse(self.envoy_admin)), self.router.listen]
        for replica in self.replicas:
            used += [replica.name, replica.data, replica.admin]
        twice = sorted({text for text in used if used.count(text) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)}: used twice; names and addresses must differ")
        return self

    @property
    def envoy_admin(self) -> str:
        """Address of Envoy's admin interface: a Unix socket, because it has no password."""
        return f"unix:{self.state_dir}/envoy.sock"

    @property
    def access_log(self) -> Path:
        """The router's log: a JSON line per request, without query or body."""
        return self.state_dir / "access.log"

    @property
    def journal(self) -> Path:
        """Journal of every step of deployments and adaptation."""
        return self.state_dir / "journal.jsonl"

    @property
    def lock(self) -> Path:
        """The controller's lock file."""
        return self.state_dir / "controller.lock"

    @property
    def admin_token_file(self) -> Path:
        """File with the admin routes' token (the servers' OUTRIDER_ADMIN_TOKEN_FILE)."""
        return self.state_dir / "admin.token"

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

    def admin_token(self) -> str:
        """Returns the admin routes' token; creates it and `state_dir` if missing."""
        self.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        return admin_token(self.admin_token_file)


def load_endpoint(name: str | Path, state_dir: Path | None = None) -> Endpoint:
    """Loads an endpoint from a file, or a shipped one (`nano_r1`).

    `state_dir` overrides the file's. Raises an `OutriderError` that names the mistake and its fix.
    """
    path = Path(name).expanduser()
    if not path.exists():
        path = SHIPPED_ENDPOINTS / f"{path.with_suffix('')}.yaml"
    if not path.is_file():
        included = ", ".join(sorted(path.stem for path in SHIPPED_ENDPOINTS.glob("*.yaml")))
        raise OutriderError(
            f"{name}: no such endpoint; give the path of its file or a shipped name: {included}"
        )
    values, origins = read_yaml(path, "an endpoint")
    origins[()] = str(path)
    values.setdefault("name", path.stem)
    state = path.resolve().parent
    folder = state_dir.absolute() if state_dir is not None else values.get("state_dir")
    if isinstance(folder, str | Path):  # anything else is refused below
        state /= Path(folder).expanduser()
        values["state_dir"] = str(state)
    try:
        return Endpoint.model_validate(values, context=state)
    except ValidationError as error:
        raise OutriderError(explain(error, Endpoint, origins, "an endpoint")) from None
