"""Lists: all methods, slices, and lists that belong to the caller."""

from __future__ import annotations

import torch

from tests.frontend.corpus.registry import case


def tensor_and_list(size):
    return torch.randn(size, 4), [torch.randn(size, 4), 2, "three"]


@case
def append_extend_and_insert(a, b):
    items = [a]
    items.append(b)
    items.extend([a + b, 1])
    items.insert(1, b * 2)
    items.insert(-1, "last but one")
    items += (7, 8)
    return items


@case
def pop_and_remove(a, b):
    items = [a, 1, b, 2, 1]
    last = items.pop()
    first = items.pop(0)
    items.remove(1)
    return items, last, first


@case
def pop_of_an_empty_list(a, b):
    items = []
    try:
        items.pop()
    except IndexError as error:
        return str(error), a + b


@case
def sort_and_reverse(a, b):
    items = [3, 1, 2]
    items.sort()
    down = [3, 1, 2]
    down.sort(reverse=True)
    by_key = ["ccc", "a", "bb"]
    by_key.sort(key=len)
    by_two = [(1, "b"), (0, "z"), (1, "a")]
    by_two.sort(key=lambda pair: (-pair[0], pair[1]))
    items.reverse()
    return items, down, by_key, by_two, a * items[0]


@case
def tensors_sorted_by_a_size(a, b):
    return sorted([a[:2], b[:1], a], key=lambda x: x.shape[0])


@case
def index_and_count(a, b):
    items = [1, 2, 3, 2]
    return items.index(2), items.index(2, 2), items.count(2), items.count(9), a + items.index(3)


@case
def index_of_what_is_not_there(a, b):
    try:
        return [1, 2].index(3)
    except ValueError as error:
        return str(error), a


@case
def copy_and_clear(a, b):
    items = [a, b]
    other = items.copy()
    another = items[:]
    items.clear()
    return items, other, another, list(other), other is another


@case
def slices(a, b):
    items = [0, 1, 2, 3, 4, a]
    return items[1:3], items[::-1], items[-2:], items[:], items[5:1:-2], items[10:]


@case
def assignment_to_slices(a, b):
    items = [0, 1, 2, 3, 4]
    items[1:3] = [a, b, a]
    items[::3] = ["x", "y"]
    items[-1] = 9
    items[:0] = [5]
    return items


@case
def deletion(a, b):
    items = [a, 1, 2, b, 3]
    del items[1]
    del items[-1]
    del items[1:2]
    return items


@case
def concatenation_and_repetition(a, b):
    items = [a] + [b]
    items = items * 2 + 2 * [1]
    items *= 1
    return items, len(items), [0] * 3


@case
def membership_and_equality(a, b):
    items = [1, "x", None]
    return 1 in items, "y" not in items, items == [1, "x", None], [1] != [2], [1, 2] < [1, 3], a


@case
def nested_lists(a, b):
    rows = [[a, 1], [b, 2]]
    rows[0][1] += 5
    rows[1].append(rows[0])
    return rows, rows[1][0] * rows[0][1]


@case
def the_same_list_in_two_places(a, b):
    inner = [a]
    outer = [inner, inner]
    outer[0].append(b)
    return outer, inner


@case
def a_list_that_contains_itself(a, b):
    items = [a]
    items.append(items)
    return items[1][1][0] + b


@case
def unpacking(a, b):
    first, *middle, last = [a, 1, 2, b]
    x, (y, z), [w] = 1, (a, b), [2]
    return first + last, middle, y * x + z * w, [*middle, *[3]]


@case
def iteration_with_changes(a, b):
    items = [1, 2, 3]
    for item in items[:]:
        if item % 2:
            items.remove(item)
    total = 0
    for index in range(len(items)):
        total += items[index]
    return items, a * total


@case
def list_grows_in_a_loop(a, b):
    history = []
    for step in range(4):
        a = a + b * step
        history.append(a)
    return torch.stack(history), history[-1]


@case(make=tensor_and_list)
def argument_list_is_read(a, items):
    return a + items[0] * items[1], items[2], items


@case(make=tensor_and_list)
def argument_list_is_appended_to(a, items):
    items.append(a + 1)
    items[1] = items[1] + 5
    return len(items)


@case(make=tensor_and_list)
def argument_list_is_emptied(a, items):
    last = items.pop()
    items.clear()
    items.extend([last, a])
    return items


@case(make=tensor_and_list)
def argument_list_is_sorted_and_returned(a, items):
    del items[0]
    items[0] = "a"
    items.sort()
    return items, items is not None, a


@case(make=lambda size: ([torch.randn(size, 4) for _ in range(4)],))
def loop_over_a_list_of_tensors(items):
    total = torch.zeros_like(items[0])
    for index, item in enumerate(items):
        total = total + item * index
    return total, sum(items), items[-1]


@case(make=lambda size: ([[torch.randn(size, 4)], []],))
def nested_argument_lists_are_changed(rows):
    rows[1].append(rows[0][0] * 2)
    rows[0].insert(0, "new")
    return rows[1][0]


@case
def list_of_functions(a, b):
    steps = [torch.relu, lambda x: x + 1, torch.Tensor.tanh]
    for step in steps:
        a = step(a)
    return a + b


@case
def list_from_other_iterables(a, b):
    return list("abc"), list((a, b)), list({"x": 1}), list(range(3)), list(map(len, ["a", "bb"])), list()


@case
def list_of_lists_by_repetition(a, b):
    grid = [[0] * 2 for _ in range(3)]
    grid[1][1] = a
    shared = [[]] * 2
    shared[0].append(b)
    return grid, shared


@case
def list_as_a_stack(a, b):
    stack = [(a, 0)]
    total = torch.zeros_like(a)
    while stack:
        value, depth = stack.pop()
        total = total + value
        if depth < 2:
            stack.append((value * 0.5, depth + 1))
            stack.append((value + b, depth + 1))
    return total


@case
def a_bound_list_method(a, b):
    items = []
    push = items.append
    push(a)
    push(b)
    return items


@case
def truth_of_containers(a, b):
    return not [], bool([0]), [] or a, [1] and b, not (), not {}, bool({0})
