"""Writes the golden cases of the template engine: what Python's jinja2 makes of the same input.

    python3 -m venv V && V/bin/pip install 'jinja2==3.1.6' && V/bin/python tools/text/make_jinja_golden.py

Output, under tests/text/data/, one JSON value a line, xz:
  chat_golden.jsonl.xz   first line: list of template files; then [messages, tools, options, [hash or text or null, ...]]
                         with one result per template; null means that Python raised an error.
  jinja_golden.jsonl.xz  first line: the context; then [template, output or null].
Results longer than 200 bytes are stored as "#" + FNV-1a 64 of the UTF-8 text.
The environment is set up as the chat-template code of the transformers library does it.
"""

import copy
import json
import lzma
import random
import re
import sys
from datetime import datetime
from pathlib import Path

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = Path(__file__).resolve().parents[2] / "tests/text/data"


class Generation(Extension):
    """{% generation %}: the body is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(lineno)

    @jinja2.pass_eval_context
    def _render(self, context, caller):
        return caller()


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return env


def fnv(text):
    value = 0xCBF29CE484222325
    for byte in text.encode("utf-8"):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"#{value:016x}"


def packed(text):
    return text if text is None or len(text.encode("utf-8")) <= 200 else fnv(text)


def write(name, lines):
    text = "\n".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in lines) + "\n"
    data = lzma.compress(text.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME)
    (ROOT / name).write_bytes(data)
    print(f"{name}: {len(lines) - 1} cases, {len(text)} bytes, {len(data)} compressed")


# --- conversations

WORDS = ("the weather in Ottawa is -3 °C; please answer briefly. 你好，世界 שלום עולם naïve café Ω≈ç 🙂 x=1 \"quoted\" 'single' "
         "<tag> & </think> <think> <|im_end|> <|im_start|>system \\n \\ \t {{ not }} {% a %} 3.14 True None null").split(" ")
NAMES = ["get_weather", "search", "f", "calc.add", "änderung"]


def sentence(rng, most=12):
    kind = rng.random()
    if kind < 0.08:
        return ""
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))
    if kind < 0.2:
        words = rng.choice(["\n", "\n\n", " ", "\t"]) + words
    if kind > 0.8:
        words += rng.choice(["\n", "\n\n", " ", "\r\n"])
    return words


def json_value(rng, depth=2):
    kind = rng.randint(0, 9 if depth > 0 else 6)
    if kind == 0:
        return None
    if kind == 1:
        return rng.random() < 0.5
    if kind == 2:
        return rng.choice([0, 1, -1, 42, 10**15, -(2**63), 2**63 - 1, 2**64 - 1])
    if kind == 3:
        return rng.choice([0.5, -0.0, 1e16, 1.0, 1e-5, 123456.789, 1e22, 0.1, 1e100, 5e-324, 1 / 3])
    if kind < 7:
        return sentence(rng, 4)
    if kind == 7:
        return [json_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice("abcdeé") * rng.randint(1, 2): json_value(rng, depth - 1) for _ in range(rng.randint(0, 3))}


def schema(rng, depth=1):
    result = {}
    kind = rng.random()
    if kind < 0.7:
        result["type"] = rng.choice(["string", "integer", "number", "boolean", "array", "object"])
    elif kind < 0.85:
        result["type"] = rng.choice([["string", "null"], ["integer", "string"]])
    elif kind < 0.93:
        result["anyOf"] = [{"type": "string"}, {"$ref": "#/$defs/x"}]
    if rng.random() < 0.6:
        result["description"] = sentence(rng, 6)
    if rng.random() < 0.2:
        result["enum"] = [json_value(rng, 0) for _ in range(3)]
    if rng.random() < 0.2:
        result["default"] = json_value(rng, 1)
    if depth > 0 and rng.random() < 0.2:
        result["items"] = schema(rng, depth - 1)
    return result


def tool(rng):
    function = {"name": rng.choice(NAMES)}
    if rng.random() < 0.8:
        function["description"] = sentence(rng)
    if rng.random() < 0.85:
        parameters = {"type": "object"}
        if rng.random() < 0.9:
            parameters["properties"] = {rng.choice(["city", "unit", "n", "größe", "x_1"]): schema(rng)
                                        for _ in range(rng.randint(0, 4))}
        if rng.random() < 0.5:
            parameters["required"] = ["city"]
        if rng.random() < 0.15:
            parameters["$defs"] = {"x": {"type": "null"}}
        function["parameters"] = parameters
    if rng.random() < 0.1:
        function["strict"] = True
    return {"type": "function", "function": function}


def conversation(rng):
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": sentence(rng)})
    for _ in range(rng.randint(0, 4)):
        kind = rng.random()
        if kind < 0.06:
            messages.append({"role": "system", "content": sentence(rng)})
        if kind < 0.9:
            messages.append({"role": "user", "content": sentence(rng)})
        if rng.random() < 0.05:
            messages.append({"role": "user",
                             "content": "<tool_response>" + sentence(rng) + "</tool_response>"})
        if rng.random() < 0.85:
            message = {"role": "assistant", "content": sentence(rng)}
            kind = rng.random()
            if kind < 0.4:
                message["reasoning_content"] = sentence(rng)
            elif kind < 0.5:
                message["reasoning_content"] = rng.choice([None, ""])
            elif kind < 0.6:
                message["content"] = "<think>\n" + sentence(rng) + "\n</think>\n\n" + sentence(rng)
            if rng.random() < 0.4:
                message["tool_calls"] = [
                    {"id": f"call_{i}", "type": "function",
                     "function": {"name": rng.choice(NAMES),
                                  "arguments": {rng.choice(["city", "n", "größe"]): json_value(rng)
                                                for _ in range(rng.randint(0, 3))}}}
                    for i in range(rng.randint(0, 3))]
            messages.append(message)
            for call in message.get("tool_calls", []):
                if rng.random() < 0.9:
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": sentence(rng)})
    if rng.random() < 0.02:
        messages.append({"role": rng.choice(["developer", "function"]), "content": "x"})
    return messages


def chat_cases(count):
    env = environment()
    files = ["qwen.jinja", "mimo_v25.jinja", "mimo_v26.jinja"]
    templates = [env.from_string((ROOT / "templates" / file).read_text()) for file in files]
    yield files
    rng = random.Random(20260)
    for _ in range(count):
        messages = conversation(rng)
        tools = [tool(rng) for _ in range(rng.randint(1, 3))] if rng.random() < 0.4 else None
        options = {"add_generation_prompt": rng.random() < 0.8}
        if rng.random() < 0.6:
            options["enable_thinking"] = rng.random() < 0.5
        if rng.random() < 0.2:
            options["keep_all_reasoning"] = rng.random() < 0.3
        results = []
        for template in templates:
            try:
                results.append(packed(template.render(messages=messages, tools=tools, documents=None, **options)))
            except Exception:
                results.append(None)
        yield [messages, tools, options, results]


# --- small programs

CONTEXT = {
    "s": "Hello World", "t": "  padded text\n", "u": "Größe 你好 🙂 ñ", "e": "", "q": "it's \"x\" \\ \t", "csv": "a,b,,c",
    "lines": "one\ntwo\r\n\n three\n", "low": "abc", "up": "ABC",
    "i": 7, "n": -3, "z": 0, "big": 9007199254740993, "f": 2.5, "g": -0.125, "h": 1e16, "tiny": 1e-7,
    "yes": True, "no": False, "nil": None,
    "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "mixed": [1, "x", None, 2.0, True, [1]], "empty": [], "nested": [[1, 2], [3, 4]],
    "pairs": [["k", 1], ["v", 2]],
    "d": {"b": 1, "a": 2, "C": 3}, "ed": {}, "m": {"role": "user", "content": "Hi", "items": [1], "x": {"y": {"z": 5}}},
    "objs": [{"n": "x", "v": 2, "on": True}, {"n": "y", "v": 1, "on": False}, {"n": "X", "v": 3}],
    "deep": {"list": [{"a": [1, {"b": None}]}], "t": "<&>'\""},
}
STR = ["s", "t", "u", "e", "q", "csv", "lines", "low", "up", "m.role", "m['content']", "'lit'", '"a\\nb"', "'é\\u00fc'", "'x' 'y'",
       "''", "'<&>'", "' '", "','", "'l'"]
INT = ["i", "n", "z", "big", "0", "1", "2", "3", "-1", "10", "0x1F", "1_000", "d.a", "m.x.y.z", "l[0]"]
FLOAT = ["f", "g", "h", "tiny", "1.5", "0.1", "1e3", "2.0"]
BOOL = ["yes", "no", "true", "False", "nil is none"]
LIST = ["l", "ls", "mixed", "empty", "nested", "objs", "[1, 2, 3]", "['a', s]", "[]", "(1, 2)", "(1,)", "()", "range(4)", "range(1, 10, 3)",
        "pairs", "d.keys()", "d.values()|list", "d.items()", "m.get('items')"]
DICT = ["d", "ed", "m", "deep", "{}", "{'k': 1}", "{'a': i, 'b': [s]}", "{1: 2, none: 3, 2.5: 'x'}", "objs[0]", "dict(a=1)", "dict(pairs)"]
ANY = ["undefd", "nil", "m.missing", "d['zz']", "l[99]", "none", "undefd.x", "l.append(1)", "l.append", "d.update", "nil.x", "i.x"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "mapping", "sequence", "iterable", "boolean", "true",
         "false", "odd", "even", "callable", "lower", "upper", "divisibleby 3", "divisibleby(2)", "eq 1", "ne 2", "lt(5)", "gt 0", "ge 1",
         "le(3)", "in [1, 2, 'x']", "sameas none", "equalto 'x'", "== 7", "greaterthan(1)", "lessthan 1"]


class Programs:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.names = []

    def pick(self, options):
        return self.rng.choice(options)

    def expr(self, kind, depth):
        if self.rng.random() < 0.04:
            kind = self.pick(["str", "int", "float", "bool", "list", "dict", "any"])
        if depth <= 0:
            return self.leaf(kind)
        text = getattr(self, "make_" + kind)(depth - 1)
        return "(" + text + ")" if self.rng.random() < 0.4 else text

    def leaf(self, kind):
        kind = self.pick(["int", "float"]) if kind == "num" else kind
        if self.names and self.rng.random() < 0.3:
            return self.pick(self.names)
        return self.pick({"str": STR, "int": INT, "float": FLOAT, "bool": BOOL, "list": LIST, "dict": DICT, "any": ANY}[kind])

    def atom(self, kind, depth):
        text = self.expr(kind, depth)
        return text if re.fullmatch(r"\w+", text) else "(" + text + ")"

    def make_any(self, d):
        return self.expr(self.pick(["str", "str", "int", "float", "bool", "list", "dict"]), d) if self.rng.random() < 0.9 else self.leaf("any")

    def make_num(self, d):
        return self.expr(self.pick(["int", "int", "float"]), d)

    def make_str(self, d):
        p, a, e = self.pick, self.atom, self.expr
        return p([
            lambda: f"{a('str', d)} + {a('str', d)}",
            lambda: f"{a('str', d)} ~ {a('any', d)} ~ {a('num', d)}",
            lambda: f"{a('str', d)} * {p(['2', '0', '-1', 'i', 'yes'])}",
            lambda: f"{a('str', d)}.{p(['strip', 'lstrip', 'rstrip'])}({p(['', '', repr('ab '), repr(chr(10)), 'none', 's'])})",
            lambda: f"{a('str', d)}.{p(['upper', 'lower', 'title', 'capitalize'])}()",
            lambda: f"{a('str', d)}|{p(['upper', 'lower', 'title', 'capitalize', 'trim', 'string'])}",
            lambda: f"{a('str', d)}.replace({a('str', d)}, {a('str', d)}{p(['', '', ', 1', ', 0', ', -1'])})",
            lambda: f"{a('any', d)}|replace({a('str', d)}, {a('str', d)}{p(['', ', 1', ', count=2'])})",
            lambda: f"{a('str', d)}{self.slice()}",
            lambda: f"{a('str', d)}[{a('int', d)}]",
            lambda: f"{a('str', d)}.split({p(['', repr(','), repr(' '), 'none', 'none, 1', repr('l') + ', 1', 'sep=' + repr('o') + ', maxsplit=1', repr('')])})[{p(['0', '-1', '1', '5'])}]",
            lambda: f"{a('str', d)}.{p(['rsplit', 'partition', 'rpartition'])}({p([repr(','), repr(' '), 'low'])})|join('|')",
            lambda: f"{a('str', d)}.join({p(['ls', 'csv', 'd', 'l', a('list', d)])})",
            lambda: f"{a('list', d)}|join({p(['', repr(', '), 's', 'd=' + repr('-'), repr(' ') + ', attribute=' + repr('n')])})",
            lambda: f"{a('any', d)}|string",
            lambda: f"{a('any', d)}|tojson{p(['', '', '(indent=2)', '(ensure_ascii=true)', '(sort_keys=true)', '(separators=(' + repr(',') + ',' + repr(':') + '))', '(indent=1, sort_keys=True)'])}",
            lambda: f"{a('str', d)} if {e('bool', d)} else {a('str', d)}",
            lambda: f"{a('str', d)} if {e('bool', d)}",
            lambda: f"{a('any', d)}|default({a('str', d)}{p(['', ', true'])})",
            lambda: f"{a('str', d)}|trim({p([repr(' H'), 'none', 'chars=' + repr('a')])})",
            lambda: f"{a('str', d)}|indent({p(['', '2', '4, true', 'width=' + repr('> ') + ', blank=true', '0', 'first=yes'])})",
            lambda: f"{a('list', d)}|{p(['first', 'last'])}",
            lambda: f"{a('str', d)}|{p(['reverse', 'first', 'last'])}",
            lambda: f"{a('dict', d)}.{p(['role', 'content', 'a', 'n', 'x'])}",
            lambda: f"{a('str', d)}.{p(['removeprefix', 'removesuffix'])}({a('str', d)})",
            lambda: f"{a('str', d)}.{p(['ljust', 'rjust'])}({p(['5', '12', '3, ' + repr('*')])})",
            lambda: f"{a('any', d)} and {a('str', d)}",
            lambda: f"{a('any', d)} or {a('str', d)}",
        ])()

    def make_int(self, d):
        p, a = self.pick, self.atom
        return p([
            lambda: f"{a('int', d)} {p(['+', '-', '*', '//', '%'])} {a('int', d)}",
            lambda: f"{a('int', d)} ** {p(['0', '1', '2', '3'])}",
            lambda: f"-{a('int', d)}",
            lambda: f"+{a('num', d)}",
            lambda: f"{a(p(['str', 'list', 'dict']), d)}|{p(['length', 'count'])}",
            lambda: f"{a('str', d)}.{p(['find', 'rfind', 'count', 'index', 'rindex'])}({a('str', d)}{p(['', ', 1', ', 2, -1', ', -4'])})",
            lambda: f"{a('list', d)}.{p(['index', 'count'])}({a('any', d)})",
            lambda: f"{a('any', d)}|int{p(['', '(5)', '(default=none)', '(0, 16)'])}",
            lambda: f"{p([repr('12'), repr(' -7 '), repr('3.9'), repr('0x1f'), repr('1_0'), repr('abc'), repr(''), repr('1e3')])}|int{p(['', '(base=16)', '(-1, 8)'])}",
            lambda: f"{a('int', d)}|{p(['abs', 'round', 'round(1)', 'round(-1)'])}",
            lambda: f"{a('list', d)}|{p(['sum', 'min', 'max', 'sum(start=10)'])}",
            lambda: f"objs|{p(['sum(attribute=' + repr('v') + ')', 'max(attribute=' + repr('v') + ')', 'min(attribute=' + repr('n') + ')'])}",
            lambda: f"{a('list', d)}[{a('int', d)}]",
            lambda: f"{a('int', d)} + {a('bool', d)}",
            lambda: f"{a('str', d)}|wordcount",
            lambda: f"i - {a('int', d)}|abs * 2",
            lambda: f"-2 ** 2 + {a('int', d)}",
        ])()

    def make_float(self, d):
        p, a = self.pick, self.atom
        return p([
            lambda: f"{a('num', d)} {p(['+', '-', '*', '/', '//', '%'])} {a('float', d)}",
            lambda: f"{a('int', d)} / {a('int', d)}",
            lambda: f"{a('float', d)}|round({p(['', '1', '2', '0', '5', '1, ' + repr('floor'), '1, ' + repr('ceil'), 'method=' + repr('ceil'), '1, ' + repr('x')])})",
            lambda: f"{a('any', d)}|float{p(['', '(1.5)', '(default=2)'])}",
            lambda: f"{p([repr('2.50'), repr(' 1e3 '), repr('-.5'), repr('x'), repr('1_0.5'), repr('5.')])}|float",
            lambda: f"{a('float', d)}|abs",
            lambda: f"{a('int', d)} ** -1",
        ])()

    def make_bool(self, d):
        p, a, e = self.pick, self.atom, self.expr
        return p([
            lambda: f"{a('num', d)} {p(['<', '<=', '>', '>=', '==', '!='])} {a('num', d)}",
            lambda: f"{a('str', d)} {p(['<', '==', '!=', '>='])} {a('str', d)}",
            lambda: f"{a('any', d)} {p(['==', '!='])} {a('any', d)}",
            lambda: f"{a('list', d)} {p(['==', '<', '>='])} {a('list', d)}",
            lambda: f"{a('int', d)} {p(['<', '<='])} {a('int', d)} {p(['<', '>', '==', '!='])} {a('num', d)}",
            lambda: f"not {a('any', d)}",
            lambda: f"{e('bool', d)} {p(['and', 'or'])} {e('bool', d)}",
            lambda: f"{a('any', d)} {p(['in', 'not in'])} {a(p(['list', 'dict', 'str']), d)}",
            lambda: f"{a('str', d)} {p(['in', 'not in'])} {a('str', d)}",
            lambda: f"{a('any', d)} is {p(['', 'not '])}{p(TESTS)}",
            lambda: f"{a('str', d)}.{p(['startswith', 'endswith'])}({p([a('str', d), '(' + repr('H') + ', ' + repr('x') + ')', repr('l') + ', 2', repr('o') + ', 0, 5'])})",
            lambda: f"{a('str', d)}.{p(['isdigit', 'isalpha', 'isspace', 'isupper', 'islower', 'isalnum', 'isnumeric'])}()",
            lambda: f"{self.leaf('any')} is {p(['defined', 'undefined', 'none', 'callable', 'sequence', 'iterable', 'mapping'])}",
            lambda: f"m.{p(['role', 'nope', 'items', 'get', 'update', '__class__', 'x.y'])} is defined",
            lambda: f"not {a('any', d)} is {p(['string', 'none', 'defined'])}",
        ])()

    def make_list(self, d):
        p, a = self.pick, self.atom
        return p([
            lambda: f"[{self.expr('any', d)}, {self.expr('num', d)}{p(['', ','])}]",
            lambda: f"({self.expr('any', d)}, {self.expr('num', d)})",
            lambda: f"{a('list', d)} + {a('list', d)}",
            lambda: f"{a('list', d)} * {p(['2', '0', 'i'])}",
            lambda: f"{a('list', d)}{self.slice()}",
            lambda: f"{a('list', d)}|{p(['list', 'reverse|list', 'sort', 'sort(reverse=true)', 'sort(case_sensitive=true)', 'unique|list', 'first', 'batch(2)|list', 'batch(2, ' + repr('-') + ')|list'])}",
            lambda: f"ls|{p(['sort', 'sort(true)', 'sort(case_sensitive=true)', 'unique|list', 'map(' + repr('upper') + ')|list', 'map(' + repr('replace') + ', ' + repr('a') + ', s)|list', 'select(' + repr('in') + ', csv)|list', 'reject(' + repr('lower') + ')|list'])}",
            lambda: f"objs|{p(['sort(attribute=' + repr('v') + ')', 'sort(attribute=' + repr('n,v') + ')', 'map(attribute=' + repr('n') + ')|list', 'map(attribute=' + repr('on') + ', default=' + repr('?') + ')|list', 'selectattr(' + repr('on') + ')|list', 'rejectattr(' + repr('on') + ')|list', 'selectattr(' + repr('v') + ', ' + repr('gt') + ', 1)|list', 'selectattr(' + repr('on') + ', ' + repr('defined') + ')|list', 'rejectattr(' + repr('n') + ', ' + repr('equalto') + ', ' + repr('x') + ')|map(attribute=' + repr('v') + ')|list', 'unique(attribute=' + repr('n') + ')|list', 'map(' + repr('tojson') + ')|list', 'map(attribute=' + repr('n.0') + ')|list'])}",
            lambda: f"{a('dict', d)}|{p(['items|list', 'dictsort', 'dictsort(by=' + repr('value') + ')', 'dictsort(true)', 'dictsort(reverse=true)', 'list', 'map(' + repr('upper') + ')|list', 'sort'])}",
            lambda: f"{a('dict', d)}.{p(['keys', 'values', 'items'])}(){p(['', '|list', '|list|length'])}",
            lambda: f"{a('str', d)}.{p(['split', 'rsplit'])}({p(['', repr(','), repr(' ') + ', 1', 'none, 1', repr('')])})",
            lambda: f"{a('str', d)}.{p(['splitlines', 'partition', 'rpartition'])}({p(['', '', 'true', repr(','), repr('l')])})",
            lambda: f"{a('str', d)}|list",
            lambda: f"{a('list', d)}|{p(['map', 'select', 'reject'])}({p([repr('string'), repr('length'), repr('none'), repr('odd'), repr('int'), repr('defined'), '', repr('number'), repr('abs')])})|list",
            lambda: f"range({a('int', d)}){p(['', '|list', '[::-1]', '[1:]'])}",
            lambda: f"range({p(['0, 10, 3', '5, 0, -2', '3, 3', '1, 2, 0', '200000'])})|list",
            lambda: f"{a('list', d)} if {self.expr('bool', d)} else {a('list', d)}",
        ])()

    def make_dict(self, d):
        p, a = self.pick, self.atom
        return p([
            lambda: f"{{{p([repr('a'), 's', 'i', '(1, 2)', 'none', 'l'])}: {self.expr('any', d)}, {p([repr('b'), '1.0', 'yes'])}: {self.expr('num', d)}}}",
            lambda: f"dict({p(['d', 'pairs', 'ed', 'm.items()'])}, z={self.expr('any', d)})",
            lambda: f"objs[{p(['0', '1', '-1', '5'])}]",
            lambda: f"{a('dict', d)}.get({p([repr('x'), repr('zz') + ', {}', repr('a')])})",
            lambda: f"{a('dict', d)}[{p([repr('x'), repr('a'), '0'])}]",
            lambda: f"{a('dict', d)}.copy()",
            lambda: f"{a('dict', d)} or {a('dict', d)}",
        ])()

    def slice(self):
        part = lambda: self.pick(["", "", "0", "1", "2", "-1", "-2", "5", "99", "-99", "none"])
        if self.rng.random() < 0.5:
            return f"[{part()}:{part()}]"
        return f"[{part()}:{part()}:{self.pick(['', '1', '2', '-1', '-2', '0', '3'])}]"

    # statements

    def tag(self, text):
        return "{%" + self.pick(["", "", "-", "+"]) + " " + text + " " + self.pick(["", "", "-", "+"]) + "%}"

    def text(self):
        return self.pick(["", " ", "\n", "\n\n  ", "x", "a b\n", "  ", "\ty\n    ", "{ % }", "é\n", "\r\n", "#}"])

    def show(self, expr):
        if self.rng.random() < 0.06:  # Markup; not deeper inside, where its methods differ from those of str
            expr = self.pick(["({})|e", "'<' ~ ({})|e", "({})|safe ~ '<'", "'&' + ({}|tojson|safe)"]).format(expr)
        return "{{" + self.pick(["", "-"]) + " " + expr + " " + self.pick(["", "-"]) + "}}"

    def any(self, depth=2):
        return self.expr(self.pick(["str", "str", "int", "float", "bool", "list", "dict", "any"]), depth)

    def body(self, depth, in_loop=False):
        out = self.text()
        for _ in range(self.rng.randint(1, 3)):
            out += self.statement(depth, in_loop) + self.text()
        return out

    def statement(self, depth, in_loop):
        kind = self.rng.random()
        t, p = self.tag, self.pick
        if depth <= 0 or kind < 0.25:
            options = [self.show(self.any(1))]
            if in_loop:
                options += [self.show("loop." + p(["index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem",
                                                   "nextitem", "depth", "nope", "cycle('a', 'b')", "changed(i)"])) for _ in range(2)]
            return p(options)
        if kind < 0.40:
            out = t("if " + self.expr("bool", 1)) + self.body(depth - 1, in_loop)
            for _ in range(self.rng.randint(0, 2)):
                out += t("elif " + self.expr("bool", 1)) + self.body(depth - 1, in_loop)
            if self.rng.random() < 0.6:
                out += t("else") + self.body(depth - 1, in_loop)
            return out + t("endif")
        if kind < 0.58:
            target, source = p([("v", self.expr("list", 1)), ("v", "l"), ("k, v", "d.items()"), ("k, v", "nested"), ("v", "s"), ("v", "d"),
                                ("v", "objs"), ("k", "ls"), ("v", "undefd"), ("k, (v, w)", "[(1, (2, 3))]"), ("v", "l|map('string')")])
            out = t(f"for {target} in {source}" + p(["", "", " if " + p(["v", "v is defined", "v != 1", self.expr("bool", 1)])]))
            before = list(self.names)
            self.names += re.findall(r"\w+", target)
            out += self.body(depth - 1, True)
            if self.rng.random() < 0.3:
                out += t("if " + self.expr("bool", 0)) + t(p(["break", "continue"])) + t("endif") + self.body(0, True)
            self.names = before
            if self.rng.random() < 0.4:
                out += t("else") + self.body(depth - 1, in_loop)
            return out + t("endfor")
        if kind < 0.70:
            name = p(["a1", "b1", "s", "l"])
            self.names.append(name)
            if self.rng.random() < 0.3:
                return t(f"set {name}" + p(["", " | trim", " | upper | replace('A', 'b')"])) + self.body(depth - 1, in_loop) + t("endset")
            if self.rng.random() < 0.2:
                return t(f"set {name}, b1 = {self.any(1)}, {self.any(1)}")
            return t(f"set {name} = {self.any(1)}")
        if kind < 0.78:
            return (t(f"set ns = namespace(c={self.expr('int', 0)}, x='q')") + t("for v in l") + t(f"set ns.c = {p(['ns.c + v', 'v', 'ns.c ~ v'])}") +
                    t("set a1 = v") + t("endfor") + self.show("ns.c") + self.show(p(["ns.x", "ns.nope", "ns", "a1", "ns['c']"])))
        if kind < 0.90:
            name = p(["mac", "mac2"])
            params = p(["", "x", "x, y=2", "x='d', y=x", "x, y=i, w=none"])
            before = list(self.names)
            self.names += re.findall(r"\b[xyw]\b", params)
            inner = self.body(depth - 1) + p(["", self.show("varargs"), self.show("kwargs"), self.show("caller()" if self.rng.random() < 0.5 else "caller is defined")])
            self.names = before
            call = f"{name}({p(['', '1', 's', '1, 2', 'x=3', 'y=4, x=' + repr('k'), '*l', '1, zz=2', '**{' + repr('x') + ': 1}'])})"
            out = t(f"macro {name}({params})") + inner + t("endmacro")
            if self.rng.random() < 0.3:
                return out + t(f"call {call}") + self.body(0) + t("endcall")
            return out + self.show(call)
        if kind < 0.93:
            return t("filter " + p(["upper", "trim", "replace('a', 's')", "indent(2)", "upper | trim"])) + self.body(depth - 1, in_loop) + t("endfilter")
        if kind < 0.95:
            return t(f"with a1 = {self.any(1)}, b1 = a1") + self.body(depth - 1, in_loop) + self.show("a1") + t("endwith")
        if kind < 0.97:
            return p(["{# c #}", "{#- c\n -#}", "{# {{ x }} +#}", "{% raw %} {{ x }} {% endraw %}", "{%- raw -%}\n {% if %}\n{%- endraw -%}",
                      "{%+ raw %}{#{% endraw +%}\n"])
        if kind < 0.985:
            return t("generation") + self.body(depth - 1) + t("endgeneration")
        return p(["{{ raise_exception('no') }}", "{{ nosuch() }}", "{% nosuch %}", "{{ s | nosuch }}", "{{ s is nosuch }}", "{{ 1 + }}", "{% if %}",
                  "{{ 'abc }}", "{{ (1 }}", "{% for x %}{% endfor %}", "{% endif %}", "{{ s s }}", "{% set 1 = 2 %}", "{{ }}", "{% break %}",
                  "{{ x y=1 }}", "{{ f(a=1, 2) }}", "{% set loop = 1 %}", "{{ 'a\\xz' }}", "{{ {'a' 1} }}", "{{ [1, }}", "{{ l[] }}", "{{ l[1:2, 3] }}"])


# Results that show a memory address or a Python object, which no prompt should, and which this engine refuses.
# Slices of constants that cannot be sliced: Jinja folds them to undefined, while at run time they are errors.
# Then what the engine leaves out on purpose: set order of dict views, integers beyond 128 bits.
FOLDED = re.compile(r"(true|false|none|\b[\d._x]+)\)*\[[^\]]*:|(keys|items)\(\)\)* [<>]|[<>]=? \(*[\w.]+\.(keys|items)\(|big\)* \*\*",
                    re.IGNORECASE)
OPAQUE = re.compile(r"0x[0-9a-f]{6,}|<generator|<built-in|<bound|<function|<jinja2|<class|LoopContext|Macro |Undefined|Markup\(|\dj\)")


def program_cases(expressions, programs):
    env = environment()
    yield copy.deepcopy(CONTEXT)
    make = Programs(7)
    seen = set()
    count = dropped = errors = 0
    while count < expressions + programs:
        make.names = []
        # A first look at s and l: without it Jinja takes both for undefined wherever the template sets them later.
        source = "{{ " + make.any(3) + " }}" if count < expressions else "{%- if s and l %}{% endif -%}" + make.body(3)
        if source in seen or len(source) > 1500 or FOLDED.search(source):
            continue
        seen.add(source)
        try:
            result = env.from_string(source).render(**copy.deepcopy(CONTEXT))  # indent changes lists in place
        except Exception:
            result = None
        if result is not None and ("nosuch" in source or OPAQUE.search(result) or len(result) > 20000 or re.search(r"\d{38}", result)):
            dropped += 1
            continue
        if result is None and errors > 0.2 * (count + 20):  # errors end early and test little
            continue
        errors += result is None
        count += 1
        yield [source, packed(result)]
    print(f"{errors} of {count} programs are errors, {dropped} dropped", file=sys.stderr)


if __name__ == "__main__":
    write("chat_golden.jsonl.xz", list(chat_cases(2200)))
    write("jinja_golden.jsonl.xz", list(program_cases(4000, 3000)))
