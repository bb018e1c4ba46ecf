"""`/tokenize`: the tokens a prompt is made of. Takes no permit, needs no worker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

import falcon
from falcon.asgi import Request, Response

from common.protocols.tgi_answer import SimpleToken, encode, simple_tokens
from common.protocols.tgi_request import TokenizeRequest
from common.validation import Validator
from web.resources.resource import Resource

_PIECE_TOKENS = 1024


class Tokenize(Resource):
    protected = True

    async def on_post(self, request: Request, response: Response) -> None:
        body = await self.parsed(request, TokenizeRequest)
        validator = self.services.models.default.validator
        send(response, await tokens_in_json(validator, body.inputs, special_tokens=body.add_special_tokens))


async def tokens_in_json(validator: Validator, text: str, *, special_tokens: bool) -> deque[bytes]:
    """The tokens of a text as a JSON array in pieces; it may be 25 times as long as the text."""
    encoding = await validator.tokenize(text, special_tokens=special_tokens)
    tokens = await validator.in_thread(lambda: simple_tokens(text, encoding))
    return await asyncio.to_thread(_array_pieces, tokens)


def send(response: Response, pieces: deque[bytes]) -> None:
    """Answer with JSON that is in pieces; empties them."""
    response.content_type = falcon.MEDIA_JSON
    response.set_stream(_sent_piecewise(pieces), sum(map(len, pieces)))


def _array_pieces(tokens: list[SimpleToken]) -> deque[bytes]:
    """A JSON array in pieces; empties `tokens`, from its end.

    To encode a piece, or to free its tokens, holds all other threads up for a moment only.
    """
    pieces = deque([b"]"])
    while tokens:
        comma = b"," if len(tokens) > _PIECE_TOKENS else b""
        pieces.appendleft(comma + encode(tokens[-_PIECE_TOKENS:])[1:-1])
        del tokens[-_PIECE_TOKENS:]
    pieces.appendleft(b"[")
    return pieces


async def _sent_piecewise(pieces: deque[bytes]) -> AsyncIterator[bytes]:
    """So that a client counts as gone when it takes no piece, and not when it takes long for them all."""
    while pieces:
        yield pieces.popleft()
