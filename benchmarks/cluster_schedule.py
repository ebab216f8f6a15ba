"""The schedule of R1 on 1 to 64 nodes, stored and streamed, by the formula of --dry-run.

    python -m benchmarks.cluster_schedule                 # the table for R1
    python -m benchmarks.cluster_schedule --network 25    # GB/s into one node

A node has 8 GPUs. A capture replica takes one node (tensor parallel 8). Training takes whole nodes,
at most as many as `training.rows_per_step` has rows for, and its step gains with them what the
network between them leaves: gradients are reduced in float32 and weights gathered in bf16 once a
step. Stored: all nodes capture, then some train. Streamed: nodes are divided between both; the
table has the best division. "kept": all states stay in memory for the second epoch (1.1 TB over
the cluster, `cluster.cache_gb`), else they are captured again. Rates of one node are those of
r1/resume_screening, which are assumed.
"""

import argparse
import dataclasses

from outrider.common.files import read_json
from outrider.pipeline.plan.cluster_schedule import GB, ClusterPlan, plan_of
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.recipe.shipped import SHIPPED

NODES = (1, 2, 4, 8, 16, 64)
GPUS = 8
TRAINED_TOKENS = 80_000_000
OTHER_TOKENS = 6_000_000
"""Validation and held-out: 3,000 sequences of 2,000 tokens."""
TRAINED_PARAMETERS = 11.6e9
INTERCONNECT_BYTES_PER_S = 400e9
"""Between two training nodes: 8 links of 400 Gbit/s."""
REPLICA_START_S = 600.0
"""671 GB of weights at a little more than 1 GB/s."""
WAYS = {"stored": (False, False), "streamed": (True, False), "streamed, kept": (True, True)}
"""Streamed or not, and whether all states stay in memory for the second epoch."""


def training_rate(recipe: Recipe, nodes: int) -> float:
    """Tokens/s of training on whole nodes, from the rate of the recipe's one node."""
    assert recipe.training.tokens_per_s is not None
    step_tokens = recipe.training.rows_per_step * recipe.training.row_tokens
    computed_s = step_tokens / recipe.training.tokens_per_s / nodes
    moved = (4 + 2) * TRAINED_PARAMETERS * (nodes - 1) / nodes
    return step_tokens / (computed_s + moved / INTERCONNECT_BYTES_PER_S)


def best(
    recipe: Recipe, nodes: int, streamed: bool, cached: bool, network: float
) -> tuple[ClusterPlan, int] | None:
    """The fastest division and its training nodes; None where streaming has no node for them."""
    most = recipe.training.rows_per_step // GPUS
    base = plan_of(TRAINED_TOKENS, recipe, read_json(SHIPPED / "r1" / "config.json"))
    plans = [
        (
            dataclasses.replace(
                base,
                replicas=nodes - training if streamed else nodes,
                streamed=streamed,
                trained_tokens=TRAINED_TOKENS,
                other_tokens=OTHER_TOKENS,
                training_tokens_per_s=training_rate(recipe, training),
                network_bytes_per_s=network * GB * (training if streamed else 1),
                replica_start_s=REPLICA_START_S,
                cache_bytes=TRAINED_TOKENS * base.bytes_per_token if cached else 0.0,
            ),
            training,
        )
        for training in range(1, min(most, nodes - streamed) + 1)
        if recipe.training.rows_per_step % (GPUS * training) == 0
    ]
    return min(plans, key=lambda each: each[0].times().training_s, default=None)


def line(nodes: int, name: str, plan: ClusterPlan, training: int) -> str:
    """A row of the Markdown table."""
    found, gains = plan.times(), plan.gains()
    saved = ", ".join(f"{part} {share:.0%}" for part, share in gains.items() if share > 0.005)
    return (
        f"| {nodes} | {name} | {plan.replicas} + {training} | {found.first_step_s / 3600:.2f} |"
        f" {found.training_s / 3600:.2f} |"
        f" {plan.captured_tokens * plan.bytes_per_token / 1e12:.1f} | {saved} |"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", type=float, help="GB/s into one node")
    arguments = parser.parse_args()
    recipe = load_recipe("r1/resume_screening", ["traffic.path=nano_r1/social_chat"]).recipe
    network = arguments.network or recipe.cluster.rates.network_gb_per_s
    print(
        "| nodes | features | capture + training nodes | first step, h | trained, h | network, TB |"
        " saved by doubling |"
    )
    print("|---|---|---|---|---|---|---|")
    for nodes in NODES:
        for name, (streamed, cached) in WAYS.items():
            if found := best(recipe, nodes, streamed, cached, network):
                print(line(nodes, name, *found))


if __name__ == "__main__":
    main()
