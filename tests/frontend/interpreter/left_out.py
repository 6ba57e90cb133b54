"""CPython's tests that are not stepped, each with the reason."""

from __future__ import annotations

FRAMES = "looks at real frames or tracebacks (sys._getframe, settrace, tb_frame, warnings' stacklevel)"
GENERATOR = "asks for attributes that only CPython's generators have (gi_frame, gi_yieldfrom, __name__)"
C_API = "tests CPython's C API"
BUILTINS = "replaces builtins that the interpreter itself uses"
DEPTH = "recurses as deep as CPython can: a stepped call takes seven of CPython's"
LIFETIME = "counts references or looks at all objects of the process"
NAME_ERROR = "asks for the `__context__` of a NameError: `Operations` raises it while handling a KeyError"
SAME_NAME = "a variable of its own and one of an outer function have one name in a function"
SHADOWED_SUPER = "`super` is another function, called without arguments: a Program has the two-argument form"
SPECIAL = "counts the look-ups of `__enter__` and `__exit__`: `Operations.load_special` does one too many"
GETATTR = "CPython reports what `__getattr__` raises when an inner iterator is closed, and goes on"
SLOW = "takes more than a minute stepped"

LEFT_OUT = {
    "test_builtin.TestBreakpoint.test_envar_good_path_builtin": BUILTINS,
    "test_call.TestPEP590.test_setvectorcall": C_API,
    "test_call.TestPEP590.test_vectorcall_override*": "wants the very tuple that is spread as arguments",
    "test_call.TestRecursion.*": DEPTH,
    "test_collections.TestNamedTuple.test_factory": FRAMES,
    "test_collections.TestNamedTuple.test_odd_sizes": SLOW,
    "test_contextlib.ContextManagerTestCase.test_contextmanager_traceback": FRAMES,
    "test_contextlib.TestExitStack.test_exit_exception_traceback": FRAMES,
    "test_dataclasses.TestMakeDataclass.test_module_attr": FRAMES,
    "test_deque.TestBasic.test_index": SLOW,
    "test_descr.ClassPropertiesAndMethods.test_cycle_through_dict": LIFETIME,
    "test_descr.ClassPropertiesAndMethods.test_special_method_lookup": SPECIAL,
    "test_dictcomps.DictComprehensionTest.test_exception_locations": FRAMES,
    "test_dynamic.RebindBuiltinsTests.*": BUILTINS,
    "test_enum.TestSpecial.test_tuple_subclass_with_auto_?": FRAMES,
    "test_exception_group.ExceptionGroupFields.test_basics_ExceptionGroup_fields": FRAMES,
    "test_exception_group.NestedExceptionGroupBasicsTest.*traceback*": FRAMES,
    "test_exceptions.ExceptionTests.testExceptionCleanupState": LIFETIME,
    "test_exceptions.ExceptionTests.testSettingException": C_API,
    "test_exceptions.ExceptionTests.test_unhandled": FRAMES,
    "test_exceptions.NameErrorTests.test_name_error_suggestions*": FRAMES,
    "test_exceptions.PEP626Tests.*": FRAMES,
    "test_functools.TestLRU*.test_lru_recursion": DEPTH,
    "test_functools.TestLRU*.test_lru_reentrancy_with_len": BUILTINS,
    "test_functools.TestPartial*.test_partial_as_method": FRAMES,
    "test_generators.GeneratorStackTraceTest.*": FRAMES,
    "test_generators.GeneratorTest.test_gi_frame_f_back": GENERATOR,
    "test_generators.GeneratorTest.test_name": GENERATOR,
    "test_generators.SignalAndYieldFromTest.*": C_API,
    "test_generators.YieldFromTests.test_generator_gi_yieldfrom": GENERATOR,
    "test_iter.TestCase.test_exception_locations": FRAMES,
    "test_iter.TestCase.test_reduce_mutating_builtins_iter": BUILTINS,
    "test_itertools.RegressionTests.test_long_chain_of_empty_iterables": SLOW,
    "test_listcomps.ListComprehensionTest.test_exception_locations": FRAMES,
    "test_patma.TestTracing.*": FRAMES,
    "test_raise.TestContext.test_c_exception_raise": NAME_ERROR,
    "test_raise.TestContext.test_context_manager": NAME_ERROR,
    "test_raise.TestTraceback.test_accepts_traceback": FRAMES,
    "test_raise.TestTracebackType.test_attrs": FRAMES,
    "test_range.RangeTest.test_range_iterators": SLOW,
    "test_richcmp.MiscTest.test_recursion": DEPTH,
    "test_setcomps.SetComprehensionTest.test_exception_locations": FRAMES,
    "test_statistics.TestNormalDist*.test_inv_cdf": SLOW,
    "test_statistics.TestSqrtHelpers.test_float_sqrt_of_frac": SLOW,
    "test_super.TestSuper.test_shadowed_dynamic": SHADOWED_SUPER,
    "test_super.TestSuper.test_various___class___pathologies": SAME_NAME,
    "test_type_params.TypeParamsAccessTest.test_comprehension_03": SAME_NAME,
    "test_types.CoroutineTests.test_gen": GENERATOR,
    "test_types.CoroutineTests.test_wrapper_object": GENERATOR,
    "test_types.SubinterpreterTests.*": "starts another interpreter",
    "test_typing.ForwardRefTests.test_forward_recursion_actually": DEPTH,
    "test_typing.InternalsTests.test_collect_parameters": FRAMES,
    "test_typing.InternalsTests.test_deprecation_for_no_type_params_passed_to__evaluate": FRAMES,
    "test_typing.NamedTupleTests.test_copy_and_pickle": FRAMES,
    "test_typing.TypedDictTests.test_basics_functional_syntax": FRAMES,
    "test_typing.TypedDictTests.test_basics_keywords_syntax": FRAMES,
    "test_typing.TypedDictTests.test_pickle": FRAMES,
    "test_typing.UnpackTests.test_usage_with_kwargs": FRAMES,
    "test_user*.test_repr_deep": DEPTH,
    "test_userstring.UserStringTest.test_find_periodic_pattern": SLOW,
    "test_with.NestedWith.testExceptionLocation": FRAMES,
    "test_yield_from.TestPEP380Operation.test_broken_getattr_handling": GETATTR,
    "test_yield_from.TestPEP380Operation.test_delegating_generators_claim_to_be_running": GENERATOR,
    "test_yield_from.TestPEP380Operation.test_delegator_is_visible_to_debugger": FRAMES,
}
