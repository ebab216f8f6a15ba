"""Actions and cost of a run, for `outrider train --dry-run`."""
