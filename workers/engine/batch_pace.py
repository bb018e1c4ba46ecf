"""How much `batch` work a step may hold while interactive requests come."""

from __future__ import annotations

LIVE_SECONDS = 5.0
"""Interactive requests count as coming for so long after the last one was here."""
LENGTHENING = 0.25
"""By so much of what a step costs anyway may batch work lengthen it then."""
NEGLIGIBLE_SECONDS = 0.005
"""Or by this much: it holds up nobody."""
LEAST_TOKENS = 4

_FADING = 0.99
"""Weight of a step when the next one is seen: the last hundred or so count."""
_OUTLIER = 4.0
"""A step that took so many times the mean was held up by something else."""


class BatchPace:
    """Knows how many tokens of batch work a step can compute without becoming much longer; decode and prefill count alike.

    A request that arrives waits for the step under way. What a step costs depends on the model and the device, and is nearly
    a fixed time and a time for each token: a line through the steps seen lately (least squares).
    """

    def __init__(self, most: int) -> None:
        """
        Args:
            most: tokens a step can have at all.
        """
        self._most = most
        self._tokens = most
        self._live_at = float("-inf")
        # Sums over the steps seen, fading: steps, tokens, seconds, tokens squared, tokens times seconds.
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def live(self, now: float) -> None:
        """An interactive sequence is here (monotonic time)."""
        self._live_at = now

    def tokens(self, now: float) -> int:
        """Tokens of batch work that a step may hold now."""
        return self._tokens if now - self._live_at < LIVE_SECONDS else self._most

    def took(self, tokens: int, seconds: float) -> None:
        """A step with so many tokens in all took so long."""
        if self._n:
            seconds = min(seconds, _OUTLIER * self._y / self._n)
        self._n = self._n * _FADING + 1.0
        self._x = self._x * _FADING + tokens
        self._y = self._y * _FADING + seconds
        self._xx = self._xx * _FADING + tokens * tokens
        self._xy = self._xy * _FADING + tokens * seconds
        mean, level = self._x / self._n, self._y / self._n
        variance = self._xx / self._n - mean * mean
        if variance < 1.0 + 0.001 * mean * mean:
            return  # Steps that are all alike tell nothing.
        slope = (self._xy / self._n - mean * level) / variance
        spare = max(LENGTHENING * (level - slope * mean), NEGLIGIBLE_SECONDS)
        self._tokens = min(self._most, max(LEAST_TOKENS, int(spare / slope))) if slope > 0 else self._most
