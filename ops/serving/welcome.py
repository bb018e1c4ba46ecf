"""The address of a running service, and a first request to it."""

from __future__ import annotations

import json
import shlex

from common.settings import DEFAULT_MODEL, Settings

_QUESTION = "What is the capital of France?"


def local_address(hostname: str, port: int) -> str:
    """Where this machine reaches a server that listens on `hostname`: the loopback address when it is any address."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(hostname, hostname)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def curl_line(settings: Settings, address: str) -> str:
    """A command that asks the model something; a chat model is asked the way it was trained to be."""
    prompt = _QUESTION
    if settings.model_id == DEFAULT_MODEL:
        prompt = f"<|im_start|>user\n{_QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    body = json.dumps({"inputs": prompt, "parameters": {"max_new_tokens": 32}})
    headers = ["-H 'Content-Type: application/json'"]
    if settings.api_key is not None or settings.api_keys_file is not None:
        headers.append('-H "Authorization: Bearer $API_KEY"')
    return f"curl {address}/generate {' '.join(headers)} -d {shlex.quote(body)}"


def welcome(settings: Settings, address: str, *, embedded_redis: bool) -> str:
    """What `tgq serve` prints when it is ready; the Redis it started is on a port nobody can guess."""
    lines = [f"Ready: {settings.model_id} on {address}", "", f"  {curl_line(settings, address)}", ""]
    if embedded_redis:
        lines += [f"For `tgq ps` in another terminal: export REDIS_URL={settings.redis_url}", ""]
        if settings.batch_workers and settings.redis_data is None:
            lines += ["Batches are forgotten at the next start; TGQ_REDIS_DATA=folder keeps them.", ""]
    return "\n".join(lines)
