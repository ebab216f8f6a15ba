"""How many sessions decide: the limits of intervals and of advice, for all rooms.

from outrider.common.sample_size import ENOUGH_SESSIONS, LEAST_SESSIONS
"""

LEAST_SESSIONS = 5
"""Fewest held-out sessions, or groups of prompts, that an interval is given for. The variance of
fewer has so few degrees of freedom that the interval would decide nothing."""

ENOUGH_SESSIONS = 30
"""Held-out sessions from which an interval is as narrow as its spread allows: Student's t is within
5 % of the normal quantile."""
