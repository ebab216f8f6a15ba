"""PromQL of an Argo Rollout's analysis, with the policy's limits.

Stable and canary pods are told apart by their pod template hash. Every ratio is canary over stable
within one window, and has no value before the canary has answered `policy.min_requests` requests:
load that changes over the day then moves both.
"""

from typing import NamedTuple

from outrider.live.manifests.parts import Parts

STABLE, CANARY = "stable-hash", "canary-hash"
"""Arguments of the templates."""

INTERVAL_S = 30
"""Seconds between two measurements."""


class Measure(NamedTuple):
    """A query of one value, and a condition on it."""

    name: str
    query: str
    condition: str
    """An expression of Argo, in which `result[0]` is the value. NaN fulfils no comparison."""


def guards(parts: Parts) -> list[Measure]:
    """What aborts the rollout when its condition is true."""
    policy, window = parts.policy, parts.settings.window_seconds
    limits = [
        ("error-rate", error_rate(window), ">", policy.max_error_rate),
        ("latency-p50", latency(0.5, window), ">", policy.max_p50_latency_ratio),
        ("latency-p99", latency(0.99, window), ">", policy.max_p99_latency_ratio),
        ("time-to-first-token", time_to_first_token(window), ">", policy.max_ttft_ratio),
        ("acceptance", acceptance(window), "<", policy.min_acceptance_ratio),
    ]
    found = [
        Measure(name, enough(query, policy.min_requests, window), f"result[0] {sign} {limit:g}")
        for name, query, sign, limit in limits
    ]
    if parts.settings.verdict == "controller":
        found.append(Measure("verdict", verdict(parts.endpoint), "result[0] == -1"))
    return found


def promotion(parts: Parts) -> Measure:
    """What allows the next step when its condition is true."""
    policy, window = parts.policy, parts.settings.window_seconds
    if parts.settings.verdict == "controller":
        return Measure("verdict", verdict(parts.endpoint), "result[0] == 1")
    query = enough(speed(window), policy.min_requests, window)
    return Measure("speed", query, f"result[0] >= {1 - policy.margin:g}")


def verdict(endpoint: str) -> str:
    """The sequential test's decision: 1 promote, 0 wait, -1 roll back."""
    return f'max(outrider_canary_verdict{{endpoint="{endpoint}"}})'


def speed(window: int) -> str:
    """Tokens/s per user: the reciprocal of the time per output token."""
    name = "vllm:request_time_per_output_token_seconds"
    return f"{_mean(name, STABLE, window)} / {_mean(name, CANARY, window)}"


def acceptance(window: int) -> str:
    """Tokens per step, 1 + accepted / drafts."""

    def tokens_per_step(group: str) -> str:
        accepted = _rate("vllm:spec_decode_num_accepted_tokens_total", group, window)
        drafts = _rate("vllm:spec_decode_num_drafts_total", group, window)
        return f"(1 + {accepted} / {drafts})"

    return f"{tokens_per_step(CANARY)} / {tokens_per_step(STABLE)}"


def latency(quantile: float, window: int) -> str:
    """A quantile of the time of a whole request."""

    def of(group: str) -> str:
        rate = _rate("vllm:e2e_request_latency_seconds_bucket", group, window, by="le")
        return f"histogram_quantile({quantile:g}, {rate})"

    return f"{of(CANARY)} / {of(STABLE)}"


def time_to_first_token(window: int) -> str:
    """The mean time to the first token."""
    name = "vllm:time_to_first_token_seconds"
    return f"{_mean(name, CANARY, window)} / {_mean(name, STABLE, window)}"


def error_rate(window: int) -> str:
    """Share of the canary's requests that ended in an error. Clients that left are no errors."""
    name = "vllm:request_success_total"
    failed = _rate(name, CANARY, window, more=',finished_reason="error"')
    # No series of errors at all is a rate of 0.
    return f"(({failed}) or vector(0)) / {_rate(name, CANARY, window)}"


def enough(query: str, requests: int, window: int) -> str:
    """The query, without a value while the canary has fewer requests in the window."""
    counted = f"sum(increase(vllm:request_success_total{_pods(CANARY)}[{window}s]))"
    return f"({query}) and on() ({counted} >= {requests})"


def _mean(name: str, group: str, window: int) -> str:
    return f"({_rate(f'{name}_sum', group, window)} / {_rate(f'{name}_count', group, window)})"


def _rate(name: str, group: str, window: int, by: str | None = None, more: str = "") -> str:
    total = f"sum by ({by})" if by else "sum"
    return f"{total}(rate({name}{_pods(group, more)}[{window}s]))"


def _pods(group: str, more: str = "") -> str:
    return f'{{rollouts_pod_template_hash="{{{{args.{group}}}}}"{more}}}'
