"""Generators that live and end within the function."""

from __future__ import annotations

import torch

from tests.frontend.corpus.registry import case


def counted(n, x):
    for i in range(n):
        yield x * i


def delegating(x, y):
    yield x
    result = yield from returning(y)
    yield result


def returning(y):
    yield y
    return y + 1


def running_mean():
    total, count, mean = 0.0, 0, None
    while True:
        value = yield mean
        total = total + value
        count += 1
        mean = total / count


@case
def loop_over_a_generator(a, b):
    total = b
    for value in counted(3, a):
        total = total + value
    return total


@case
def generator_into_containers(a, b):
    return (
        list(counted(2, a)),
        tuple(counted(2, b)),
        dict(enumerate(counted(2, a))),
        sum(counted(3, a)),
        [*counted(1, b)],
    )


@case
def next_by_hand(a, b):
    generator = counted(2, a)
    return next(generator), next(generator), next(generator, "end")


@case
def yield_from(a, b):
    return list(delegating(a, b))


@case
def yield_from_containers(a, b):
    def generate():
        yield from [a, b]
        yield from (1, 2)
        yield from range(2)

    return list(generate())


@case
def send_values(a, b):
    mean = running_mean()
    next(mean)
    mean.send(a)
    return mean.send(b)


@case
def generator_with_try_finally(a, b):
    steps = []

    def generate():
        try:
            yield a
            yield b
        finally:
            steps.append("closed")

    values = [x * 2 for x in generate()]
    return values, steps


@case
def generator_closed_early(a, b):
    steps = []

    def generate():
        try:
            yield 1
            yield 2
        finally:
            steps.append("closed")

    generator = generate()
    first = next(generator)
    generator.close()
    return first, steps, a


@case
def generator_that_catches_a_throw(a, b):
    def generate():
        try:
            yield 1
        except ValueError as error:
            yield str(error)

    generator = generate()
    next(generator)
    return generator.throw(ValueError("thrown")), a


@case
def infinite_generator_with_a_break(a, b):
    def naturals():
        n = 0
        while True:
            yield n
            n += 1

    for n in naturals():
        if n > 3:
            break
        a = a + n
    return a


@case
def recursive_generator(a, b):
    def leaves(tree):
        if isinstance(tree, list):
            for branch in tree:
                yield from leaves(branch)
        else:
            yield tree

    return list(leaves([a, [b, [1]], 2]))


@case
def generator_with_unpacking(a, b):
    def pairs():
        yield a, 1
        yield b, 2

    (x, n), (y, m) = pairs()
    return x * n + y * m


@case
def zip_of_generators(a, b):
    return [x + y for x, y in zip(counted(3, a), counted(2, b))], list(map(torch.relu, counted(2, a)))


@case
def generator_changes_a_list(a, b):
    items = []

    def generate():
        for i in range(2):
            items.append(i)
            yield a + i

    generator = generate()
    before = len(items)
    values = list(generator)
    return values, items, before


@case
def any_stops_a_generator_early(a, b):
    seen = []

    def generate():
        for i in range(5):
            seen.append(i)
            yield i == 2

    return any(generate()), seen, a


@case
def generator_method_of_a_class(a, b):
    class Layers:
        def __init__(self, *layers):
            self.layers = layers

        def __iter__(self):
            for layer in self.layers:
                yield layer

    for layer in Layers(torch.relu, torch.tanh):
        a = layer(a)
    return a


@case
def generator_pipeline(a, b):
    def source():
        yield from (a, b, a + b)

    doubled = (x * 2 for x in source())
    shifted = (x + 1 for x in doubled)
    return list(shifted)
