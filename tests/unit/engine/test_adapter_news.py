"""The worker hears of adapters that come and go, also while nothing is generated."""

from __future__ import annotations

from multiprocessing import Pipe

import msgspec
import pytest

from common.limits import Limits
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import encode_msgpack
from workers.engine import main
from workers.engine.engine import Engine
from workers.engine.messages import FromEngine, Ready, Shutdown
from workers.engine.scripted_model import ScriptedModel


class _Following(ScriptedModel):
    """Has another adapter each time it is asked."""

    follows = True

    def refresh(self) -> bool:
        self.card = msgspec.structs.replace(self.card, adapters=[*self.card.adapters, "another"])
        return True


def test_a_new_card_is_sent_when_adapters_change(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "SIGN_OF_LIFE_SECONDS", 0.01)
    settings = Settings.of()
    runner = _Following(tokenizer, Limits(63, 64), settings)
    ours, theirs = Pipe()
    cards: list[list[str]] = []

    def send(message: FromEngine) -> None:
        if isinstance(message, Ready):
            cards.append(message.card.adapters)
            if len(cards) == 2:
                ours.send_bytes(encode_msgpack(Shutdown()))

    main._serve(theirs, Engine(runner, tokenizer, settings), runner, send)
    assert cards[:2] == [["another"], ["another", "another"]]
