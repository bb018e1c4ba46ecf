"""Chat templates of the kinds that models come with, and conversations to try them on."""

from __future__ import annotations

from typing import Any

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
STRICT = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {{- raise_exception('System role not supported') }}
{%- endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}
"""
"""Gemma's kind."""
HEADERS = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nToday: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {{- 'Answer with {"name": function name, "parameters": dictionary of names and values}.\n\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == 'tool' or message.role == 'ipython' %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
"""Llama 3's kind."""
TAGS = """{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nAnswer calls within <tool_call></tool_call>:\n<|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(turns=0) %}
{%- for message in messages %}
    {%- set ns.turns = ns.turns + 1 %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.reasoning_content is string and loop.last %}
            {{- '\n<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n' }}
        {%- endif %}
        {%- if message.content %}
            {{- '\n' }}
            {%- generation %}{{- message.content }}{%- endgeneration %}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- else %}
        {%- continue %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
"""Qwen's and Hermes' kind."""
INSTRUCT = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and loop.last %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.function.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val | tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
"""
"""Mistral's kind."""
PARTS = """{% for message in messages %}{% if loop.first %}<bos>{% endif %}{{ message['role'] | capitalize }}:
{%- for part in message['content'] | selectattr('type', 'equalto', 'text') %} {{ part['text'] }}{% endfor %}

{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"""
"""SmolVLM's kind: contents are always parts."""
EITHER = (
    "{% for message in messages %}[{{ message.role }}]{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)
MACRO = """{%- macro show(value, depth=0) -%}
    {%- if value is mapping -%}
        {%- for key in value | sort -%}
            {{ "  " * depth }}{{ key }}:{{ show(value[key], depth + 1) }}
        {%- endfor -%}
    {%- else -%} {{ value | string | upper }};{%- endif -%}
{%- endmacro -%}
{%- set roles = dict(user='U', assistant='A', system='S') -%}
{%- for message in messages if message.content -%}
    {%- if loop.index > 50 %}{% break %}{% endif -%}
    <{{ roles.get(message.role, '?') }} {{ loop.index }}/{{ loop.length }} {{ loop.revindex0 }} {{ loop.previtem is defined }}>
    {{- message.content.replace('o', '0').split(' ') | join('_') | indent(2) }}
    {%- for tool in tools or [] %}{{ show(tool.function.parameters) }}{% endfor %}
{%- else -%}nothing{%- endfor -%}
{{- messages[::-1] | map(attribute='role') | list | tojson -}}
{{- {'b': 1, 'a': 'é<&>'} | tojson(sort_keys=true, separators=(',', ':')) -}}
"""
"""Of everything a bit: macros, filters in loops, breaks, slices."""

FAMILIES = {
    "chatml": CHATML,
    "strict": STRICT,
    "headers": HEADERS,
    "tags": TAGS,
    "instruct": INSTRUCT,
    "either": EITHER,
    "macro": MACRO,
}
SPECIAL_TOKENS: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>"}

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather <now> & later, auch für Köln",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds",
            "parameters": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}},
        },
    },
]

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [{"role": "user", "content": 'Hello <there> & "you" 🤗'}],
    "system": [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": " Hi "}],
    "three turns": [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two\n\nlines"},
        {"role": "user", "content": "Three"},
    ],
    "same role twice": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "ends with the assistant": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b "}],
    "a call and its result": [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "abcdefgh1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": [1, 2.5, None]}},
                }
            ],
        },
        {"role": "tool", "content": '{"t": 3}', "name": "get_weather", "tool_call_id": "abcdefgh1"},
        {"role": "user", "content": "And?"},
    ],
    "thoughts": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "\nhm\n", "thinking": "\nhm\n"},
    ],
}
