"""try, except, else, finally, raise: errors that are caught inside, and errors that leave."""

from __future__ import annotations

import torch

from tests.frontend.corpus.registry import case


class Wrong(ValueError):
    def __init__(self, message, code=0):
        super().__init__(message)
        self.code = code


class Nested(Wrong):
    pass


def raises(kind=ValueError, *args):
    raise kind(*args)


LOG = []


@case
def caught_in_the_same_function(a, b):
    try:
        raise ValueError("no")
    except ValueError as error:
        return a + 1, str(error), error.args


@case
def caught_from_a_call(a, b):
    try:
        raises(KeyError, "k")
    except (ValueError, KeyError) as error:
        a = a * 2
        kind = type(error).__name__
    return a, kind


@case
def else_and_finally(a, b):
    steps = []
    try:
        steps.append("try")
    except ValueError:
        steps.append("except")
    else:
        steps.append("else")
        a = a + 1
    finally:
        steps.append("finally")
        a = a * 2
    return a, steps


@case
def finally_after_an_error(a, b):
    steps = []
    try:
        try:
            raises()
        finally:
            steps.append("finally")
            b = b + 1
    except ValueError:
        steps.append("caught")
    return a + b, steps


@case
def return_in_try_with_finally(a, b):
    steps = []

    def inner():
        try:
            return a + 1
        finally:
            steps.append("cleanup")

    return inner(), steps


@case
def finally_overrides_the_return(a, b):
    def inner():
        for _ in range(2):
            try:
                return 1
            finally:
                continue
        return 2

    return inner(), a


@case
def custom_exceptions(a, b):
    try:
        raise Nested("deep", code=7)
    except Wrong as error:
        return a * error.code, isinstance(error, ValueError), str(error)


@case
def raised_again(a, b):
    def inner():
        try:
            raises(Wrong, "first")
        except Wrong:
            LOG_LOCAL.append(1)
            raise

    LOG_LOCAL = []
    try:
        inner()
    except ValueError as error:
        return str(error), LOG_LOCAL, a


@case
def chained_exceptions(a, b):
    try:
        try:
            raises(KeyError, "inner")
        except KeyError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        cause = error.__cause__
        return type(cause).__name__, error.__context__ is cause, a + b


@case
def implicit_context(a, b):
    try:
        try:
            raises(KeyError, "inner")
        except KeyError:
            raises(RuntimeError, "outer")
    except RuntimeError as error:
        return type(error.__context__).__name__, error.__cause__ is None, a


@case
def raise_from_none(a, b):
    try:
        try:
            raises()
        except ValueError:
            raise TypeError("new") from None
    except TypeError as error:
        return error.__suppress_context__, a


@case
def errors_of_python(a, b):
    kinds = []
    for action in (
        lambda: 1 / 0,
        lambda: [][1],
        lambda: {}["k"],
        lambda: None.x,
        lambda: int("q"),
        lambda: "a" + 1,
    ):
        try:
            action()
        except Exception as error:
            kinds.append(type(error).__name__)
    return kinds, a


@case
def errors_of_torch_are_caught(a, b):
    try:
        return torch.cat([a, b[:, :2]], dim=0)
    except RuntimeError:
        return a + b


@case
def bare_except(a, b):
    try:
        raises(TypeError)
    except:  # noqa: E722
        a = a - 1
    return a


@case
def nested_handlers(a, b):
    steps = []
    try:
        try:
            raises(KeyError)
        except ValueError:
            steps.append("wrong handler")
        finally:
            steps.append("inner finally")
    except LookupError:
        steps.append("outer handler")
    return steps, a


@case
def the_name_of_the_error_is_gone(a, b):
    error = "before"
    try:
        raises()
    except ValueError as error:
        pass
    try:
        return error
    except UnboundLocalError:
        return "gone", a


@case(breaks=None, hits=False)
def an_error_leaves_the_function(a, b):
    a = a + b
    raise Wrong("stop", a.shape[0])


@case(breaks=None, hits=False)
def an_error_leaves_after_a_change(a, b):
    a.add_(1)
    b[0] = 5
    raise RuntimeError(f"after {a.dim()}")


@case(breaks=None, hits=False)
def an_assertion_fails(a, b):
    assert a.shape[0] == 99, f"size {a.shape[0]}"
    return a


@case(breaks=None, hits=False)
def an_error_of_torch_leaves(a, b):
    c = a * 2
    return c @ b


@case(breaks=None, hits=False)
def a_key_is_missing(a, b):
    table = {"x": a}
    return table["y"]


@case
def exception_groups_by_type(a, b):
    def classify(error):
        try:
            raise error
        except (KeyError, IndexError):
            return "lookup"
        except ArithmeticError:
            return "arithmetic"
        except Exception:
            return "other"

    return [classify(e) for e in (KeyError(), IndexError(), ZeroDivisionError(), TypeError())], a


@case
def loop_with_break_in_try(a, b):
    for i in range(3):
        try:
            if i == 1:
                break
            a = a + i
        finally:
            a = a * 2
    return a, i


@case
def optional_attribute_by_exception(a, b):
    class Box:
        pass

    box = Box()
    try:
        scale = box.scale
    except AttributeError:
        scale = 3
    return a * scale


@case
def exceptions_as_values(a, b):
    error = ValueError("x", 1)
    errors = [error, KeyError]
    return error.args, isinstance(error, Exception), errors[1].__name__, str(error), a


@case
def not_implemented_is_turned_around(a, b):
    class Odd:
        def __add__(self, other):
            return NotImplemented

        def __radd__(self, other):
            return "reflected"

    try:
        Odd() + 1
    except TypeError:
        return 1 + Odd(), a


@case
def stop_iteration_with_a_value(a, b):
    def generate():
        yield 1
        return "value"

    generator = generate()
    next(generator)
    try:
        next(generator)
    except StopIteration as stop:
        return stop.value, a


@case(breaks=1)
def the_text_of_an_error_of_torch(x):
    try:
        y = x @ x
    except RuntimeError as error:
        y = x * 2 if "mat1" in error.args[0] else x
    return y + 1


@case(breaks=None)
def an_error_of_torch_is_kept(x):
    try:
        y = x @ x
    except RuntimeError as error:
        y, kept = x * 2, error
    return y, kept
