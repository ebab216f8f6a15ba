"""The simulated schedule of R1 on 1 to 64 nodes, stored and streamed.

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
import math

from outrider.common.files import read_json
from outrider.recipes.config.load import load_recipe
from outrider.recipes.config.recipe import Recipe
from outrider.recipes.config.shipped import SHIPPED
from outrider.recipes.dry_run.cluster_model import Layout, Rates, Timeline, Work, simulate
from outrider.recipes.dry_run.cluster_schedule import GB, equal_pieces, window_pieces
from outrider.recipes.dry_run.estimates import capture_cost

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
HELD_PIECES = 3
"""Pieces in flight for each replica: being captured, waiting, being read. Streamed training has
two windows besides."""
WAYS = {"stored": (False, False), "streamed": (True, False), "streamed, kept": (True, True)}
"""Streamed or not, and whether all states stay in memory for the second epoch."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table."""

    capture_nodes: int
    training_nodes: int
    found: Timeline


def training_rate(recipe: Recipe, nodes: int) -> float:
    """Tokens/s of training on whole nodes, from the rate of the recipe's one node."""
    assert recipe.training.tokens_per_s is not None
    step_tokens = recipe.training.rows_per_step * recipe.training.row_tokens
    computed_s = step_tokens / recipe.training.tokens_per_s / nodes
    moved = (4 + 2) * TRAINED_PARAMETERS * (nodes - 1) / nodes
    return step_tokens / (computed_s + moved / INTERCONNECT_BYTES_PER_S)


def rates_of(recipe: Recipe, training_nodes: int, streamed: bool, network: float) -> Rates:
    """The model's rates with this many training nodes."""
    cost = capture_cost(TRAINED_TOKENS, recipe, read_json(SHIPPED / "r1" / "config.json"))
    assumed = recipe.cluster.rates
    assert cost.tokens_per_s is not None
    return Rates(
        capture_tokens_per_s=cost.tokens_per_s,
        training_tokens_per_s=training_rate(recipe, training_nodes),
        bytes_per_token=cost.bytes_per_token,
        network_bytes_per_s=network * GB * (training_nodes if streamed else 1),
        write_bytes_per_s=assumed.write_gb_per_s * GB,
        read_bytes_per_s=assumed.read_gb_per_s * GB,
        replica_start_s=REPLICA_START_S,
        training_start_s=assumed.training_start_s,
    )


def best(recipe: Recipe, nodes: int, streamed: bool, cached: bool, network: float) -> Row | None:
    """The fastest division of the nodes; None where streaming has no node for training."""
    most = recipe.training.rows_per_step // GPUS
    work = Work(
        equal_pieces(TRAINED_TOKENS, recipe.capture.batch_tokens),
        recipe.training.epochs,
        equal_pieces(OTHER_TOKENS, recipe.capture.batch_tokens),
        window_pieces=window_pieces(recipe),
    )
    rows = []
    for training in range(1, min(most, nodes - streamed) + 1):
        if recipe.training.rows_per_step % (GPUS * training):
            continue
        capture = nodes - training if streamed else nodes
        rates = rates_of(recipe, training, streamed, network)
        pieces = HELD_PIECES * capture + (2 * work.window_pieces if streamed else 0)
        held = pieces * recipe.capture.batch_tokens * rates.bytes_per_token
        layout = Layout(capture, streamed, held, cache_bytes=math.inf if cached else 0.0)
        rows.append(Row(capture, training, simulate(work, rates, layout)))
    return min(rows, key=lambda row: row.found.training_s, default=None)


def line(nodes: int, name: str, row: Row, epochs: int) -> str:
    """A row of the Markdown table."""
    found = row.found
    trained = epochs * TRAINED_TOKENS / (found.training_s - found.first_step_s)
    starts = 2 if name.startswith("streamed") else 1
    captured = found.captured_tokens / (found.capture_s - starts * REPLICA_START_S)
    shares = {key: value for key, value in found.busy.items() if value}
    busiest = ", ".join(f"{key} {share:.0%}" for key, share in shares.items())
    return (
        f"| {nodes} | {name} | {row.capture_nodes} + {row.training_nodes} | {captured:,.0f} |"
        f" {trained:,.0f} | {found.first_step_s / 3600:.2f} | {found.training_s / 3600:.2f} |"
        f" {found.moved_bytes / 1e12:.1f} | {found.disk_bytes / 1e12:.1f} | {busiest} |"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", type=float, default=math.nan, help="GB/s into one node")
    arguments = parser.parse_args()
    recipe = load_recipe("r1/resume_screening", ["traffic.path=nano_r1/social_chat"]).recipe
    network = arguments.network
    if math.isnan(network):
        network = recipe.cluster.rates.network_gb_per_s
    print(
        "| nodes | features | capture + training nodes | captured tokens/s | trained tokens/s |"
        " first step, h | trained, h | network, TB | disk, TB | busy until training ends |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for nodes in NODES:
        for name, (streamed, cached) in WAYS.items():
            row = best(recipe, nodes, streamed, cached, network)
            if row is not None:
                print(line(nodes, name, row, recipe.training.epochs))


if __name__ == "__main__":
    main()
