"""Strings and bytes: they choose layers and name things."""

from __future__ import annotations

import string

import torch

from tests.frontend.corpus.registry import case


@case
def methods_of_case_and_space(a, b):
    text = " Hello World "
    return (
        text.upper(),
        text.lower(),
        text.strip(),
        text.title(),
        text.lstrip(),
        text.swapcase(),
        "x".center(3),
        a,
    )


@case
def predicates(a, b):
    return (
        "layer.0".startswith("layer"),
        "x.weight".endswith((".weight", ".bias")),
        "12".isdigit(),
        "ab".isalpha(),
        "a b".isidentifier(),
        "A".isupper(),
        " ".isspace(),
        b,
    )


@case
def splitting_and_joining(a, b):
    path = "encoder.layer.0.weight"
    head, _, tail = path.partition(".")
    return (
        path.split("."),
        path.rsplit(".", 1),
        ".".join(["a", "b"]),
        head,
        tail,
        path.rpartition("."),
        "a\nb".splitlines(),
        a,
    )


@case
def searching_and_replacing(a, b):
    text = "banana"
    return (
        text.find("n"),
        text.index("n"),
        text.rfind("n"),
        text.count("a"),
        text.replace("a", "o", 2),
        text.find("z"),
        b,
    )


@case
def slicing_and_membership(a, b):
    text = "abcdef"
    return text[0], text[-2:], text[::-1], "cd" in text, len(text), text + "g", text * 2, "b" > "a", a


@case
def f_strings(a, b):
    n, x, name = 3, 2.5, "w"
    return (
        f"{name}.{n}",
        f"{x:.3f}",
        f"{n:>5}|{n:05d}",
        f"{name!r} {n=}",
        f"{a.shape[1]:{n}}",
        f"{{}}",
        f"{x!s:>6}",
    )


@case
def percent_and_format(a, b):
    return (
        "%d %s %.2f" % (3, "x", 1.5),
        "%(k)s" % {"k": 1},
        "{} {}".format(1, 2),
        "{1}{0}".format("a", "b"),
        "{x:>4}".format(x=7),
        format(3.14159, ".2f"),
        a,
    )


@case
def conversions(a, b):
    return (
        str(12),
        repr("x"),
        str(1.5),
        int("42"),
        float("1e-3"),
        int("ff", 16),
        bool(""),
        str(None),
        str([1, "a"]),
        ascii("é"),
        a,
    )


@case
def characters_and_numbers(a, b):
    return chr(65), ord("a"), hex(255), bin(5), oct(8), [chr(ord("a") + i) for i in range(3)], a * ord("\x02")


@case
def strings_choose_the_branch(a, b):
    mode = "".join(["s", "um"])
    if mode == "sum":
        return a.sum()
    elif mode == "mean":
        return a.mean()
    raise ValueError(mode)


@case(make=lambda size: (torch.randn(size, 4), "gelu"))
def string_argument(a, activation):
    if activation == "relu":
        return torch.relu(a)
    return getattr(torch.nn.functional, activation)(a)


@case
def prefix_and_suffix(a, b):
    return (
        "layer.w".removeprefix("layer."),
        "x.bias".removesuffix(".bias"),
        "a-b_c".translate(str.maketrans("-_", "++")),
        a,
    )


@case
def padding_and_zfill(a, b):
    return "7".zfill(3), "a".ljust(3, "."), "a".rjust(3), "\t".expandtabs(2), a


@case
def bytes_and_encoding(a, b):
    data = b.shape and "héllo".encode("utf-8")
    return data, data.decode(), b"ab" + b"c", b"abc"[1], bytes([1, 2]), bytearray(b"x"), data.hex(), a


@case
def constants_of_the_string_module(a, b):
    return string.ascii_lowercase[:3], string.digits, a


@case
def loops_over_characters(a, b):
    total = 0
    for letter in "abc":
        total += ord(letter)
    return a + total, [c.upper() for c in "xy"], list(enumerate("ab")), sorted("cab"), dict(zip("ab", (1, 2)))


@case
def multi_line_and_escapes(a, b):
    text = """first
    second"""
    return text, "a\tb", r"\n", "concat", a


@case
def equality_and_identity(a, b):
    x = "a" + "b"
    return x == "ab", x != "b", "" or "default", not "x", a


@case
def string_methods_as_functions(a, b):
    return list(map(str.upper, ["a"])), max(["a", "ccc"], key=len), sorted(["b", "A"], key=str.lower), a


@case
def einsum_equation_built_from_letters(a, b):
    letters = string.ascii_lowercase
    left, right = letters[:2], letters[2] + letters[1]
    return torch.einsum(f"{left},{right}->{letters[0]}{letters[2]}", a, b)
