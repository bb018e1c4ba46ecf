"""Text from elsewhere, made harmless for a terminal."""

from __future__ import annotations

_KEPT = "\n\t"
_DROPPED = "\r"
_REPLACEMENT = 0xFFFD

_HARMLESS: dict[int, int | None] = (
    {code: 0x2400 + code for code in range(0x20)}  # Unicode has pictures of them: U+241B for escape.
    | {0x7F: 0x2421}
    | dict.fromkeys(range(0x80, 0xA0), _REPLACEMENT)
    | dict.fromkeys(range(0xD800, 0xE000), _REPLACEMENT)  # Half a character, which cannot be written at all.
    | dict.fromkeys(map(ord, _DROPPED))
)
for _character in _KEPT:
    del _HARMLESS[ord(_character)]


def harmless(text: str) -> str:
    """The text with every control character but line feed and tab made visible: nothing in it commands a terminal.

    Works on pieces of a text as on the whole.
    """
    return text.translate(_HARMLESS)
