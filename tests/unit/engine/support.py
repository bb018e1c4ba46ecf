"""Small tokenizers of the usual kinds, jobs, and a model runner that needs no model."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as FastTokenizer

from common.errors import InvalidRequest
from common.limits import Limits
from common.model_files import ModelFiles
from common.parameters import GenerationParameters
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Failed, Job, ModelCard, Token, Tokens
from workers.engine.engine import Engine
from workers.engine.messages import JobEvent
from workers.engine.plan import Copy, FloatArray, StepPlan
from workers.engine.scripted_model import ScriptedModel
from workers.engine.sequence import AdapterVersion, Sequence

CORPUS = [
    " The quick brown fox jumps over the lazy dog.",
    "the capital of France is Paris, said the fox; the lazy dog asks why.",
    "def fox(dog): return [dog for dog in dogs if dog.lazy]",
    "größer, naïve, über, ça va; один два три; 你好世界; 한글; 🤗 🦊",
]
SPECIAL = ["<|end|>", "<|start|>", "<|user|>"]
EOS = SPECIAL[0]


def byte_level() -> FastTokenizer:
    """GPT-2's kind: every byte is a token."""
    tokenizer = FastTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS[:3], trainer)
    return tokenizer


def byte_fallback() -> FastTokenizer:
    """Llama's kind: SentencePiece pieces, bytes for characters it has no piece for, one leading space stripped."""
    trained = FastTokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=160, special_tokens=["<unk>"], show_progress=False)
    trained.train_from_iterator(CORPUS[:3], trainer)
    learnt = json.loads(trained.to_str())["model"]
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    for piece in sorted(learnt["vocab"], key=learnt["vocab"].get):
        vocab.setdefault(piece, len(vocab))
    tokenizer = FastTokenizer(
        models.BPE(vocab, [tuple(merge) for merge in learnt["merges"]], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def metaspace() -> FastTokenizer:
    """T5's kind: Metaspace, the leading space of the first piece stripped."""
    tokenizer = FastTokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", *SPECIAL], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


KINDS: dict[str, Callable[[], FastTokenizer]] = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "metaspace": metaspace,
}


def save(tokenizer: FastTokenizer, folder: Path) -> Tokenizer:
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}))
    return Tokenizer(ModelFiles("test", folder))


def make_job(
    prompt_ids: list[int],
    *,
    name: str = "r",
    attempt: int = 1,
    generated_ids: list[int] | None = None,
    **parameters: Any,
) -> Job:
    """A job; keywords that are fields of `Job` go there, the rest are parameters."""
    fields = {
        name: parameters.pop(name) for name in ("deadline", "job_class", "version", "reply_to") if name in parameters
    }
    parameters = {"max_new_tokens": 20, "seed": 1, **parameters}
    return Job(
        id=name,
        attempt=attempt,
        model="test",
        prompt_ids=prompt_ids,
        generated_ids=generated_ids or [],
        parameters=GenerationParameters(**parameters),
        submitted_at=0.0,
        **fields,
    )


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class HashedModel:
    """A `ModelRunner` whose logits depend on all ids so far: a token computed wrongly, or twice, changes what follows.

    It checks what the engine promises to a real runner: blocks, positions in order, every token computed once, and no
    block written that another sequence holds too.
    """

    def __init__(
        self, vocab_size: int, *, num_blocks: int = 200, contiguous: bool = True, max_batch_size: int = 8
    ) -> None:
        self.vocab_size = vocab_size
        self.block_size = 4
        self.num_blocks = num_blocks
        self.contiguous_blocks = contiguous
        self.card = ModelCard(
            model_id="hashed",
            dtype="torch.float32",
            device_type="cpu",
            max_total_tokens=256,
            max_batch_total_tokens=(num_blocks - 1) * 4,
            max_batch_size=max_batch_size,
        )
        self.cache: dict[int, int] = {}
        """Token id by slot."""
        self.released: list[str] = []
        self.plans: list[list[tuple[str, int, int, int]]] = []
        self.before_forward: Callable[[StepPlan], None] = lambda plan: None
        self.copied = 0
        self.follows = False

    def due(self, sequence: Sequence) -> float:
        return 0.0

    def adapter(self, name: str) -> AdapterVersion:
        raise InvalidRequest(f"there is no adapter {name}")

    def refresh(self) -> bool:
        return False

    def slot(self, sequence: Sequence, position: int) -> int:
        return sequence.blocks[position // self.block_size] * self.block_size + position % self.block_size

    def copy(self, copies: Many[Copy]) -> None:
        assert len({copy.target for copy in copies}) == len(copies)
        size = self.block_size
        content = {copy.target: [self.cache.get(copy.source * size + i) for i in range(size)] for copy in copies}
        for target, ids in content.items():
            assert target > 0
            for i, token_id in enumerate(ids):
                self.cache.pop(target * size + i, None)
                if token_id is not None:
                    self.cache[target * size + i] = token_id
        self.copied += len(copies)

    def forward(self, plan: StepPlan) -> FloatArray:
        self.before_forward(plan)
        self.plans.append([(row.sequence.job.id, row.start, row.count, row.logits) for row in plan.rows])
        rows: list[FloatArray] = []
        for row in plan.rows:
            sequence = row.sequence
            assert row.count >= 1
            assert row.start == sequence.computed
            assert 0 not in sequence.blocks
            if self.contiguous_blocks:
                assert sequence.blocks == list(range(sequence.blocks[0], sequence.blocks[0] + len(sequence.blocks)))
            for position in range(row.start, row.start + row.count):
                self.cache[self.slot(sequence, position)] = sequence.ids[position]
            for position in range(row.start + row.count - row.logits, row.start + row.count):
                past = [self.cache[self.slot(sequence, p)] for p in range(position + 1)]
                rows.append(hashed_logits(past, self.vocab_size))
        return np.stack(rows) if rows else np.empty((0, self.vocab_size), np.float32)

    def release(self, sequence: Sequence) -> None:
        self.released.append(sequence.job.id)


def hashed_logits(ids: list[int], vocab_size: int) -> FloatArray:
    """Pseudo-random logits for the token after `ids`."""
    seed = hash(tuple(ids)) & 0xFFFFFFFF
    return np.random.default_rng(seed).normal(scale=2.0, size=vocab_size).astype(np.float32)


def scripted_engine(tokenizer: Tokenizer, clock: Clock | None = None, **settings: Any) -> Engine:
    """An engine on the scripted model; time stands still unless `clock` is moved."""
    clock = clock or Clock()
    values = Settings.of(model_id="scripted", **settings)
    limits = Limits(max_input_tokens=1023, max_total_tokens=1024)
    return Engine(
        ScriptedModel(tokenizer, limits, values, clock=clock), tokenizer, values, clock=clock, unix_time=Clock()
    )


def script_prompt(tokenizer: Tokenizer, **script: Any) -> list[int]:
    return tokenizer.ids(f"<<script {json.dumps(script)}>>")


def run(engine: Engine, jobs: list[Job], steps: int = 10_000) -> list[JobEvent]:
    """All events of the jobs, added together.

    Steps while a grammar is compiled in its thread have nothing to do and are soon over: only time bounds those.
    """
    engine.add(jobs)
    events: list[JobEvent] = []
    deadline = time.monotonic() + 60
    for step in itertools.count():
        if not engine.has_work:
            break
        assert step < steps or time.monotonic() < deadline, "the engine does not come to an end"
        events.extend(engine.step())
    return events


def tokens_of(events: list[JobEvent], request: str = "r") -> list[Token]:
    """The tokens of one request; offsets must be without a gap from those of the first event."""
    tokens: list[Token] = []
    first = None
    for event in events:
        if event.request == request and isinstance(event.body, Tokens):
            first = event.body.offset if first is None else first
            assert event.body.offset == first + len(tokens)
            tokens.extend(event.body.tokens)
    return tokens


def last_of(events: list[JobEvent], request: str = "r") -> Tokens | Failed:
    """The last event of one request, which must end it."""
    body = [event.body for event in events if event.request == request][-1]
    assert isinstance(body, Failed) or (isinstance(body, Tokens) and body.finish is not None)
    return body


def text_of(tokens: list[Token]) -> str:
    return "".join(token.text for token in tokens if not token.special)
