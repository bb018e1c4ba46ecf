"""How anyone gets tokens: send a job, hear its frames in order, know when it is lost."""

from common.client.generation import GenerationClient
from common.client.timings import Timings
from common.client.token_stream import TokenStream

__all__ = ["GenerationClient", "Timings", "TokenStream"]
