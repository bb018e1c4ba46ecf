"""How much of a worker's engine its jobs take up, and what there is room for."""

from __future__ import annotations

from common.wire import JobClass, ModelCard
from workers.answer_lengths import UNKNOWN, AnswerLengths
from workers.held import Held
from workers.transport import Offer, Room

NOTHING = Room(0, 0)


class Load:
    """Counts held jobs by class: sequences, and tokens each is expected to come to hold. Not thread-safe."""

    def __init__(self, batch_reserve: int) -> None:
        self._batch_reserve = batch_reserve
        self._use: dict[JobClass, list[int]] = {"interactive": [0, 0], "batch": [0, 0]}
        self.lengths = AnswerLengths()

    def add(self, held: Held, card: ModelCard | None) -> None:
        """Count a job from now on, with what it is expected to need now."""
        held.answer_tokens = min(held.job.longest_answer, self._expected(card))
        self._count(held, 1)

    def remove(self, held: Held) -> None:
        """The job is gone."""
        self._count(held, -1)

    def grown(self, held: Held, offset: int) -> None:
        """An answer is `offset` tokens long: if that is more than was expected, expect it to become twice as long."""
        answer = held.answer_tokens
        if offset - len(held.job.generated_ids) > answer < held.job.longest_answer:
            self._count(held, -1)
            held.answer_tokens = min(2 * answer, held.job.longest_answer)
            self._count(held, 1)

    def offer(self, card: ModelCard, queues: int) -> Offer:
        """What may be pulled from so many queues. Those after the first leave the reserve free."""
        slots, capacity = card.max_batch_size, card.max_batch_total_tokens
        # The engine lets batch jobs wait for interactive ones, so only interactive jobs are in their way.
        jobs, tokens = slots - self._use["interactive"][0], capacity - self._use["interactive"][1]
        interactive = Room(jobs, tokens)
        reserve = min(self._batch_reserve, slots - 1)
        reserved_tokens = capacity * reserve // slots
        idle = jobs == slots and not self._use["batch"][0]
        jobs, tokens = jobs - self._use["batch"][0], tokens - self._use["batch"][1]
        # An idle worker takes any batch job: a reserve must not make one impossible.
        batch = Room(jobs - reserve, tokens if idle else tokens - reserved_tokens)
        return Offer(capacity, self._expected(card), [interactive] + [batch] * (queues - 1))

    def _expected(self, card: ModelCard | None) -> int:
        # Where the engine reserves, jobs that it has no room for would wait in it, out of other workers' reach.
        return UNKNOWN if card is None or card.reserves_answers else self.lengths.expected

    def _count(self, held: Held, sign: int) -> None:
        sequences = held.job.parameters.children
        use = self._use[held.job.job_class]
        use[0] += sign * sequences
        use[1] += sign * (held.job.known + sequences * held.answer_tokens)
