"""A small world of all kinds of objects, ways to read it and ways to change it, as text.

As text, so that a twin can be made of it: one world is read by Python, the other by a captured function, and
both are changed in the same way in between. A line is an expression (`READS`) or a statement (the others).
"""

WORLD = """
import builtins, collections, copy, dataclasses, enum, functools, itertools, math, operator, os, sys
import fractions, json, types, typing
from collections import OrderedDict, defaultdict, deque, namedtuple
import torch
from torch import nn
import torch.nn.functional as F

NUM = 2
FLT = 1.5
STR = "ab"
NONE = None
LST = [1, 2, 3]
INNER = [7, 8]
NEST = [[1, 2], {"a": [3], "b": INNER}, (4, [5]), INNER]
TUP = (1, 2.0, "c", (3, [4]))
DCT = {"a": 1, "b": 2.0, 3: "x"}
SET = {1, 2, 3}
FRO = frozenset({1, "a"})
DEQ = deque([1, 2, 3], maxlen=5)
OD = OrderedDict(a=1, b=2)
DD = defaultdict(int, a=1)
RNG = range(3)
SLC = slice(0, 2)
BYT = bytearray(b"abc")
P = namedtuple("P", "u v")
NT = P(1, [2])
SNS = types.SimpleNamespace(a=1, b=[2])
T1 = torch.arange(6.0).reshape(2, 3)
T2 = T1
T3 = torch.ones(2, 3)
MP = types.MappingProxyType(DCT)
MOD = types.ModuleType("of_this_world")
MOD.val = 1
FRC = fractions.Fraction(1, 2)

@functools.lru_cache
def cached(a):
    return a + NUM

class Color(enum.Enum):
    RED = 1
    BLUE = 2
COL = Color.RED

class IntSub(int):
    extra = 1
class StrSub(str):
    pass
class ListSub(list):
    tag = 1
    def total(self):
        return sum(self)
class DictSub(dict):
    tag = 1
    def __missing__(self, key):
        return key * 2
class TupSub(tuple):
    pass
LS = ListSub([1, 2])
LS.name = "ls"
DS = DictSub(a=1)
DS.name = "ds"

class Meta(type):
    mk = 1
    def mm(cls):
        return cls.k
    def __len__(cls):
        return 4

class Plain:
    pass

class Root:
    r = 1
    def rm(self):
        return self.r

class Base(Root, metaclass=Meta):
    k = 1
    shared = [1]
    def __init__(self, v=1):
        self.v = v
        self.items = [1, 2]
        self.table = {"a": 1}
    def m(self):
        return self.v + 1
    def dflt(self, a=1, *, b=2):
        return a * 10 + b
    @property
    def p(self):
        return self.v * 3
    @classmethod
    def c(cls):
        return cls.k
    @staticmethod
    def s(a):
        return a + 1
    @functools.cached_property
    def cp(self):
        return self.v * 5
    def __len__(self):
        return len(self.items)
    def __getitem__(self, index):
        return self.items[index]
    def __contains__(self, value):
        return value in self.items
    def __call__(self, a):
        return a + self.k
    def __format__(self, spec):
        return f"B{self.v}{spec}"
    def __str__(self):
        return f"str{self.v}"
    def __hash__(self):  # one by address would make it chance whether a dict finds it
        return hash(self.v)

class Sub(Base):
    def m(self):
        return super().m() * 2
    def __eq__(self, other):
        return isinstance(other, Base) and self.v == other.v
    def __hash__(self):
        return hash(self.v)
    def __lt__(self, other):
        return self.v < other.v
    def __add__(self, other):
        return (self.v, other)
    def __iter__(self):
        return iter(self.items)

class Other(Base):
    k = 9
    def m(self):
        return -1

class Getter:
    def __init__(self):
        self.known = 1
    def __getattr__(self, name):
        if name.startswith("x"):
            return len(name)
        raise AttributeError(name)

class Slots:
    __slots__ = ("a", "b")
    def __init__(self):
        self.a = 1
class SlotsSub(Slots):
    __slots__ = ("c",)

class Desc:
    def __get__(self, obj, kind=None):
        return 1 if obj is None else obj.__dict__.get("_d", 0)
    def __set__(self, obj, value):
        obj.__dict__["_d"] = value
class NonData:
    def __get__(self, obj, kind=None):
        return 77
class WithDesc:
    d = Desc()
    n = NonData()

@dataclasses.dataclass
class Data:
    a: int = 1
    b: list = dataclasses.field(default_factory=list)
@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int = 1
    b: str = "b"

OBJ = Sub()
OBJ2 = Sub(2)
OBASE = Base(3)
GET = Getter()
SLO = SlotsSub()
WD = WithDesc()
DAT = Data()
FRZ = Frozen()
OBJS = [OBJ, OBJ2, OBASE]
BYKEY = {OBJ: 1, "q": OBJ2}

def func(a, b=2, *, c=3):
    return a * 100 + b * 10 + c
def func2(a, b=5, *, c=6):
    return -(a * 100 + b * 10 + c)
func.note = "n"
def make(n, lst):
    def inner(a):
        return a + n + len(lst)
    def bump(value):
        nonlocal n
        n = value
    def drop():
        nonlocal n
        del n
    inner.bump = bump
    inner.drop = drop
    return inner
CLO = make(1, [1])
CLO2 = make(5, [1, 2])
PART = functools.partial(func, 1, c=7)
def deco(fn):
    @functools.wraps(fn)
    def wrapper(*a, **k):
        return fn(*a, **k) + 1
    return wrapper
@deco
def decorated(a):
    return a * 2
LAM = lambda a: a + NUM
FNS = [func, LAM]
METH = OBJ.m
GETTER = operator.attrgetter("v")
ITEMG = operator.itemgetter(0)

class Net(nn.Module):
    cls_attr = 1
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.seq = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.ml = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.md = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Identity()})
        self.drop = nn.Dropout(0.0)
        self.scale = 2
        self.cfg = {"s": 1}
        self.w = nn.Parameter(torch.ones(3))
        self.pl = nn.ParameterList([nn.Parameter(torch.ones(3))])
        self.register_buffer("buf", torch.zeros(3))
        self.none = None
        for p in self.parameters():
            with torch.no_grad():
                p.copy_(torch.arange(p.numel()).reshape(p.shape) * 0.25)
    def helper(self, x):
        return x * self.scale
    def forward(self, x):
        return self.lin(x)
NET = Net()
NET2 = Net()
"""

READS = """
NUM
FLT
STR
NUM == 2
NUM is None
isinstance(NUM, int)
type(NUM) is int
type(NUM).__name__
NUM + FLT
f"{NUM}-{FLT}-{STR}"
str(NUM)
repr(FLT)
bool(NUM)
NUM or 5
not NUM
x * NUM
x * FLT + NUM
NONE is None
LST
len(LST)
LST[0]
LST[-1]
LST[1:]
LST[::-1]
sum(LST)
max(LST)
sorted(LST)
tuple(LST)
2 in LST
LST.index(2) if 2 in LST else -1
LST.count(2)
LST == [1, 2, 3]
bool(LST)
[i * 2 for i in LST]
list(map(lambda i: i + 1, LST))
any(i > 2 for i in LST)
all(LST)
list(zip(LST, STR))
list(enumerate(LST))
list(reversed(LST))
[*LST, 1]
dict(enumerate(LST))
LST + [1]
LST * 2
LST is INNER
NEST[3] is INNER
NEST[1]["b"] is NEST[3]
NEST[1]["a"]
NEST[2][1]
NEST == [[1, 2], {"a": [3], "b": [7, 8]}, (4, [5]), [7, 8]]
copy.copy(LST)
copy.deepcopy(NEST)
TUP
TUP[1]
TUP[3][1]
len(TUP)
"c" in TUP
TUP[:2]
hash(TUP[:3])
DCT
DCT["a"]
DCT.get("a")
DCT.get("z", 5)
DCT.get("b", 5)
"b" in DCT
"z" not in DCT
len(DCT)
list(DCT)
list(DCT.items())
list(DCT.values())
DCT.keys() & {"a", "z"}
{**DCT, "n": 1}
DCT | {"q": 1}
DCT == {"a": 1, "b": 2.0, 3: "x"}
sorted(map(str, DCT))
next(iter(DCT))
next(iter(DCT.items()))
list(reversed(DCT))
bool(DCT)
MP["a"]
len(MP)
list(MP)
SET
len(SET)
2 in SET
sorted(map(str, SET))
SET | {9}
SET == {1, 2, 3}
SET & {1}
SET.issubset({1, 2, 3, 4})
FRO
"a" in FRO
DEQ
DEQ[0]
DEQ[-1]
len(DEQ)
DEQ.maxlen
list(DEQ)
OD
list(OD)
OD == OrderedDict(a=1, b=2)
next(reversed(OD))
DD
DD["a"]
"zz" in DD
DD.get("zz", -1)
DD.default_factory
RNG
list(RNG)
LST[SLC]
BYT
BYT[0]
len(BYT)
NT
NT.u
NT.v
NT[1]
NT._replace(u=5)
NT._fields
SNS.a
SNS
vars(SNS)
getattr(SNS, "zz", 0)
hasattr(SNS, "b")
COL
COL.value
COL is Color.RED
COL.name
Color["RED"]
list(Color)
LS
LS.name
LS.tag
len(LS)
LS.total()
DS
DS["a"]
DS["zz"]
DS.tag
OBJ.v
OBJ.k
OBJ.r
OBJ.m()
OBJ.rm()
OBJ.dflt()
OBJ.dflt(5, b=1)
OBJ.p
OBJ.c()
OBJ.s(3)
OBJ.cp
len(OBJ)
OBJ[0]
2 in OBJ
OBJ(4)
f"{OBJ:z}"
str(OBJ)
OBJ == OBJ2
OBJ != OBJ2
OBJ == OBASE
OBJ is OBJ2
OBJ < OBJ2
OBJ + 1
list(OBJ)
bool(OBJ)
OBASE == OBASE
OBJ in OBJS
OBJS[0] is OBJ
sorted(OBJS[:2])[0].v
max(OBJS[:2]).v
[q.v for q in OBJS]
hash(OBJ) if type(OBJ).__hash__ is not object.__hash__ else 0
BYKEY[OBJ]
OBJ in BYKEY
isinstance(OBJ, Base)
isinstance(OBJ, Sub)
isinstance(OBJ, (list, Other))
issubclass(type(OBJ), Base)
type(OBJ)
type(OBJ) is Sub
type(OBJ).__mro__
OBJ.__class__.__name__
OBJ.__class__
OBJ.__dict__
OBJ.__dict__["v"]
OBJ.__dict__.get("nope")
vars(OBJ)
sorted(vars(OBJ))
"v" in vars(OBJ)
"nope" in OBJ.__dict__
len(vars(OBJ))
list(vars(OBJ).items())
sorted(n for n in dir(OBJ) if not n.startswith("_"))
getattr(OBJ, "v")
getattr(OBJ, "nope", 0)
getattr(OBJ, "k", 0)
hasattr(OBJ, "nope")
hasattr(OBJ, "v")
hasattr(OBJ, "m")
hasattr(OBJ, "__len__")
callable(OBJ)
callable(OBJ.v)
callable(NUM)
OBJ.items
OBJ.items[0]
OBJ.table["a"]
OBJ.shared
Sub.k
Sub.shared
Base.k
Sub.mk
Sub.mm()
len(Sub)
Sub.m
Sub.__name__
Sub.__bases__
Sub.__dict__.get("k")
"m" in Sub.__dict__
"k" in Sub.__dict__
vars(Base)["k"]
Sub.m(OBJ)
Base.m(OBJ)
super(Sub, OBJ).m()
hasattr(Sub, "nope")
getattr(Sub, "nope", 3)
Sub(7).m()
Sub(7)
Base()
Base(2).p
METH()
METH.__self__ is OBJ
METH.__func__ is Sub.m
OBJ.m == OBJ.m
OBJ.m.__name__
GET.known
GET.xyz
getattr(GET, "zz", 0)
hasattr(GET, "xa")
SLO.a
getattr(SLO, "b", 0)
hasattr(SLO, "c")
SLO
WD.d
WD.n
WithDesc.d
DAT
DAT.a
DAT == Data()
repr(DAT)
dataclasses.replace(DAT, a=9)
dataclasses.asdict(DAT)
[f.name for f in dataclasses.fields(DAT)]
Data()
FRZ == Frozen()
FRZ < Frozen(2)
hash(FRZ)
FRZ
func(1)
func(1, c=1)
func.__defaults__
func.__kwdefaults__
func.__name__
func.note
func.__dict__
func.__doc__
func.__code__.co_argcount
hasattr(func, "zz")
func is FNS[0]
func
CLO(1)
CLO.__closure__[1].cell_contents
CLO(1) + CLO2(1)
PART()
PART.args
PART.keywords
PART.func is func
decorated(3)
decorated.__wrapped__(3)
LAM(3)
[fn(1) for fn in FNS]
GETTER(OBJ)
ITEMG(LST)
functools.reduce(operator.add, LST)
operator.eq(NUM, 2)
operator.attrgetter("v")(OBJ)
operator.methodcaller("m")(OBJ)
globals()["NUM"]
"NUM" in globals()
globals().get("NOPE", 4)
sys.modules["builtins"] is builtins
"NOPE" in sys.modules
os.environ.get("TR_FUZZ", "none")
"TR_FUZZ" in os.environ
os.getenv("TR_FUZZ")
math.pi
math.floor(FLT)
torch.is_grad_enabled()
torch.get_default_dtype()
torch.ones(2)
(x * 1).requires_grad
x.requires_grad
x.shape
x.stride()
x.dtype
x.is_contiguous()
x.storage_offset()
x.dim()
len(x)
x is y
x is T1
T1 is T2
T1
T1 + T3
T1.grad is None
T1.shape[0]
x.grad
x.is_leaf
x.grad_fn is None
type(x)
isinstance(x, nn.Parameter)
hasattr(x, "tagged")
getattr(x, "tagged", 0)
x._version
x._base is None
x.data_ptr() == y.data_ptr()
x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
x @ y.t()
torch.mm(x, y.t())
x.size(0) * NUM
x.to(T1.dtype)
x.expand_as(y)
x.is_floating_point()
x.numel()
NET(x)
NET.helper(x)
NET.scale
NET.cls_attr
NET.cfg["s"]
NET.training
NET.drop(x)
NET.lin(x)
NET.lin.weight
NET.lin.bias is None
NET.lin.weight is NET2.lin.weight
NET.lin is NET.ml[0]
NET.seq(x)
len(NET.seq)
[type(m).__name__ for m in NET.seq]
NET.ml[0](x)
NET.ml[-1](x)
len(NET.ml)
[m(x) for m in NET.ml]
NET.md["a"](x)
list(NET.md)
"b" in NET.md
list(NET.md.keys())
NET.w * x
NET.buf + x
NET.none is None
NET.pl[0]
len(NET.pl)
[n for n, _ in NET.named_parameters()]
[p.shape for p in NET.parameters()]
sum(p.sum() for p in NET.parameters())
[n for n, _ in NET.named_buffers()]
[n for n, _ in NET.named_modules()]
[n for n, _ in NET.named_children()]
len(list(NET.modules()))
any(p.requires_grad for p in NET.parameters())
NET.state_dict().keys()
list(NET.state_dict())
hasattr(NET, "nope")
getattr(NET, "extra", None)
"w" in NET._parameters
NET._buffers["buf"]
NET.get_parameter("lin.weight")
NET.get_submodule("seq.0")(x)
isinstance(NET.lin, nn.Linear)
NET.lin.in_features
NET.lin.__class__ is nn.Linear
NET.forward(x)
F.linear(x, NET.lin.weight)
F.dropout(x, 0.0, NET.training)
F.relu(x)
torch.relu(x)
o.v
o.m()
o is OBJ
o == OBJ
isinstance(o, Base)
type(o).__name__
l
len(l)
l is LST
l[0]
l == LST
kw
kw.get("a")
sorted(kw)
rest
len(rest)
d
dd
[x.sum() if NUM else y.sum(), x.mean()]
NUM if x.shape[0] > 2 else FLT
abs
len
range(NUM)
[NUM] * 2
print
divmod(7, NUM)
round(FLT)
int(FLT), float(NUM), complex(NUM)
min(NUM, FLT)
STR.upper()
STR[0]
"a" in STR
len(STR)
"%s-%d" % (STR, NUM)
"{0.v}".format(OBJ)
STR.join(["x", "y"])
{STR: NUM}
{NUM, FLT}
(lambda q=NUM: q)()
[a for a, *b in [LST]]
typing.cast(int, NUM)
iter(LST)
(i for i in LST)
itertools.chain(LST, [1])
list(itertools.islice(LST, 2))
list(itertools.product(LST, [0]))
next(iter(LST), None)
next((i for i in LST if i > 2), None)
zip(LST, DCT)
map(LAM, LST)
OBJ.table
OBJ.table.setdefault("a", 4)
T1.requires_grad
T1.tagged if hasattr(T1, "tagged") else 0
torch.empty(0).dtype
torch.tensor(1.5).dtype
torch.zeros(1).device
torch.are_deterministic_algorithms_enabled()
torch.get_num_threads()
torch.is_autocast_enabled("cpu")
os.path.join("a", STR)
torch.nn.functional.linear
torch.get_float32_matmul_precision()
__name__
__debug__
"%s" % (OBJ,)
isinstance(OBJ, collections.abc.Iterable)
isinstance(OBJ, collections.abc.Sized)
isinstance(OBJ, typing.Hashable)
NET.lin == NET.ml[0]
NET.lin in list(NET.ml)
{NET.lin: 1, NET.ml[0]: 2}[NET.lin]
len({NET.lin, NET.ml[0]})
len({OBASE, OBJ2})
OBASE == OBJ2
[OBASE].index(OBASE)
sum(OBJ.items)
LS[0]
[i for i in LS]
sum(LS)
DS.get("a")
list(DS.items())
"a" in DS
"""

CHANGES = """
NUM = 2
NUM = 3
NUM = True
NUM = 2.0
NUM = IntSub(2)
NUM = None
NUM = torch.tensor(2)
NUM = -1
del NUM
FLT = 1.5
FLT = 0.0
FLT = -0.0
FLT = float("nan")
FLT = 1
STR = "ab"
STR = "abc"
STR = StrSub("ab")
STR = b"ab"
NONE = None
NONE = 0
LST.append(4)
LST.pop()
LST[0] = True
LST[0] = 1
LST[0] = 1.0
LST[0] = [1]
LST.reverse()
LST.clear()
LST[:] = [1, 2, 3]
LST = [1, 2, 3]
LST = ListSub([1, 2, 3])
LST = (1, 2, 3)
LST = INNER
LST = torch.tensor([1, 2, 3])
LST[0], LST[1] = LST[1], LST[0]
NEST[1]["a"].append(1)
NEST[1]["a"] = [3]
NEST[1]["b"] = [7, 8]
NEST[1]["b"] = INNER
NEST[3] = list(INNER)
NEST[3] = INNER
INNER.append(1)
INNER[:] = [7, 8]
NEST[2][1].append(6)
NEST[2] = (4, [5])
NEST[2] = [4, [5]]
TUP = (1, 2.0, "c", (3, [4]))
TUP = (True, 2, "c", (3, [4]))
TUP = (1, 2.0, "c")
TUP[3][1].append(1)
TUP = TupSub(TUP)
TUP = list(TUP)
DCT["a"] = 2
DCT["a"] = 1
DCT["a"] = True
DCT["z"] = 4
del DCT["z"]
DCT["b"] = DCT.pop("b")
DCT[3.0] = DCT.pop(3)
DCT[3] = DCT.pop(3)
DCT = {"a": 1, "b": 2.0, 3: "x"}
DCT = {"b": 2.0, "a": 1, 3: "x"}
DCT = DictSub(DCT)
DCT = OrderedDict(DCT)
DCT = {3: "x", **DCT}
DCT.clear()
DCT.update(a=1, b=2.0)
MP = types.MappingProxyType({"a": 5})
MP = types.MappingProxyType(DCT)
SET.add(4)
SET.discard(2)
SET.add("2")
SET = {1, 2, 3}
SET = {True, 2, 3}
SET = {3.0, 2, 1}
SET = frozenset(SET)
SET = set(SET)
FRO = frozenset({1, "a"})
FRO = frozenset({True, "a"})
FRO = {1, "a"}
DEQ.append(9)
DEQ.rotate(1)
DEQ = deque([1, 2, 3], maxlen=5)
DEQ = deque([1, 2, 3], maxlen=3)
DEQ = [1, 2, 3]
OD.move_to_end("a")
OD["a"] = 5
OD["c"] = 5
OD = OrderedDict(a=1, b=2)
OD = dict(a=1, b=2)
DD["zz"] = 4
DD.pop("zz")
DD["a"] = 5
DD.default_factory = list
DD = defaultdict(int, a=1)
DD = dict(a=1)
RNG = range(3)
RNG = range(0, 3, 2)
RNG = range(4)
SLC = slice(0, 2)
SLC = slice(1, None)
BYT.append(4)
BYT = bytearray(b"abc")
BYT = b"abc"
NT = P(1, [2])
NT = P(1.0, [2])
NT.v.append(1)
NT = (1, [2])
SNS.a = 1
SNS.a = 3
SNS.b.append(1)
SNS.zz = 1
del SNS.zz
SNS = types.SimpleNamespace(a=1, b=[2])
SNS = types.SimpleNamespace(b=[2], a=1)
COL = Color.RED
COL = Color.BLUE
COL = 1
LS.append(3)
LS.name = "other"
del LS.name
ListSub.tag = 2
ListSub.tag = 1
LS.tag = 7
ListSub.total = lambda self: -5
ListSub.__len__ = lambda self: 55
del ListSub.__len__
LS = ListSub([1, 2])
LS = [1, 2]
DS["a"] = 4
DS["zz"] = 1
DS.pop("zz")
DictSub.tag = 2
DictSub.__missing__ = lambda self, key: "m"
del DictSub.__missing__
DS = DictSub(a=1)
OBJ.v = 1
OBJ.v = 2
OBJ.v = True
OBJ.v = 1.0
del OBJ.v
OBJ.k = 5
del OBJ.k
OBJ.r = 5
del OBJ.r
OBJ.m = lambda: 50
del OBJ.m
OBJ.c = lambda: 60
del OBJ.c
OBJ.p = 4
OBJ.__dict__["p"] = 4
OBJ.__dict__["s"] = lambda a: 0
OBJ.__dict__.pop("s")
OBJ.__dict__["cp"] = 4
OBJ.__dict__.pop("cp", None)
OBJ.__dict__ = {"v": 1, "items": [1], "table": {"a": 2}}
OBJ.__dict__ = dict(reversed(OBJ.__dict__.items()))
OBJ.nope = 1
del OBJ.nope
OBJ.items.append(3)
OBJ.items.pop()
OBJ.items = [1, 2]
OBJ.items = (1, 2)
OBJ.items = LST
OBJ.table["a"] = 3
OBJ.table["c"] = 3
OBJ.table = {"a": 1}
OBJ.table.pop("a")
OBJ.shared = [2]
del OBJ.shared
OBJ.__class__ = Other
OBJ.__class__ = Sub
OBJ.__class__ = Base
OBJ = Sub()
OBJ = Sub(2)
OBJ = OBJ2
OBJ = Other()
OBJ2 = Sub(2)
OBJ2.v = 1
OBJ2.v = 2
OBJ2 = OBJ
OBJS[0] = OBJ
OBJS[0], OBJS[1] = OBJS[1], OBJS[0]
OBJS = [OBJ, OBJ2, OBASE]
OBJS.append(OBJ)
OBASE.v = 1
OBASE = Base(3)
BYKEY = {OBJ: 1, "q": OBJ2}
BYKEY[OBJ] = 3
BYKEY["q"] = OBJ
Base.k = 1
Base.k = 3
Base.k = True
del Base.k
Sub.k = 8
del Sub.k
Root.r = 2
Root.r = 1
Base.r = 4
del Base.r
Base.shared.append(2)
Base.shared = [1]
Sub.shared = [5]
del Sub.shared
Base.m = lambda self: 70
Base.m = lambda self: self.v + 1
Sub.m = lambda self: 71
del Sub.m
Sub.m = Base.m
Sub.c = classmethod(lambda cls: 4)
del Sub.c
Sub.s = staticmethod(lambda a: 4)
del Sub.s
Sub.p = property(lambda self: 4)
Sub.p = 12
del Sub.p
Sub.rm = lambda self: 11
del Sub.rm
Root.rm = lambda self: 12
Base.dflt.__defaults__ = (3,)
Base.dflt.__defaults__ = (1,)
Base.dflt.__kwdefaults__ = {"b": 4}
Base.dflt.__kwdefaults__["b"] = 5
Base.dflt.__kwdefaults__ = {"b": 2}
Base.__init__.__defaults__ = (4,)
Base.__init__.__defaults__ = (1,)
Base.__len__ = lambda self: 3
Base.__len__ = lambda self: len(self.items)
Sub.__len__ = lambda self: 0
del Sub.__len__
Sub.__bool__ = lambda self: False
del Sub.__bool__
Sub.__eq__ = lambda self, other: True
Sub.__eq__ = lambda self, other: isinstance(other, Base) and self.v == other.v
del Sub.__eq__
Base.__eq__ = lambda self, other: False
del Base.__eq__
Sub.__ne__ = lambda self, other: 5
del Sub.__ne__
Sub.__lt__ = lambda self, other: self.v > other.v
Sub.__lt__ = lambda self, other: self.v < other.v
Sub.__contains__ = lambda self, value: True
del Sub.__contains__
Sub.__getitem__ = lambda self, i: 5
del Sub.__getitem__
Sub.__iter__ = lambda self: iter((9,))
del Sub.__iter__
Sub.__call__ = lambda self, a: 5
del Sub.__call__
Sub.__str__ = lambda self: "x"
del Sub.__str__
Sub.__format__ = lambda self, spec: "f"
del Sub.__format__
Sub.__hash__ = lambda self: 4
Sub.__hash__ = lambda self: hash(self.v)
Sub.__add__ = lambda self, other: 0
Sub.__getattr__ = lambda self, name: object.__getattribute__(self, "v") if name[0] != "_" else nothing
del Sub.__getattr__
Sub.__getattribute__ = lambda self, name: object.__getattribute__(self, name)
Base.__getattribute__ = lambda self, name: 5 if name == "v" else object.__getattribute__(self, name)
del Base.__getattribute__
del Sub.__getattribute__
Sub.__bases__ = (Other,)
Sub.__bases__ = (Base,)
Sub.__name__ = "Renamed"
Sub.__name__ = "Sub"
Sub.nope = 4
del Sub.nope
Root.nope = 5
del Root.nope
Meta.mk = 2
Meta.mk = 1
Sub.mk = 3
del Sub.mk
Meta.mm = lambda cls: 4
Meta.mm = lambda cls: cls.k
Meta.__len__ = lambda cls: 5
Meta.__call__ = lambda cls, *a: 5
del Meta.__call__
Meta.__instancecheck__ = lambda cls, o: False
del Meta.__instancecheck__
Base.__new__ = lambda cls, *a: object.__new__(Other)
Base.__new__ = staticmethod(lambda cls, *a: object.__new__(cls))
Base.__init__ = lambda self, v=1: self.__dict__.update(v=v + 1, items=[], table={})
METH = OBJ.m
METH = OBJ2.m
METH = OBJ.rm
GET.known = 2
GET.xyz = 5
del GET.xyz
GET.zz = 4
del GET.zz
Getter.__getattr__ = lambda self, name: 9
Getter.xyz = 2
del Getter.xyz
SLO.a = 2
SLO.a = 1
del SLO.a
SLO.b = 3
del SLO.b
SLO.c = 5
del SLO.c
SLO = SlotsSub()
SLO = Slots()
WD.d = 5
WD.d = 0
WD.__dict__["n"] = 3
WD.__dict__.pop("n")
WD.__dict__["d"] = 3
Desc.__get__ = lambda self, obj, kind=None: 44
del NonData.__get__
NonData.__get__ = lambda self, obj, kind=None: 78
NonData.__set__ = lambda self, obj, value: None
del NonData.__set__
DAT.a = 2
DAT.a = 1
DAT.b.append(1)
DAT = Data()
DAT.extra = 1
Data.a = 3
Data.__init__.__defaults__ = (8,)
FRZ = Frozen()
FRZ = Frozen(3)
object.__setattr__(FRZ, "a", 2)
func = func2
func.__defaults__ = (3,)
func.__defaults__ = None
func.__kwdefaults__ = {"c": 8}
func.__kwdefaults__["c"] = 9
func.__code__ = func2.__code__
func.__defaults__ = (2,)
func.note = "m"
del func.note
func.zz = 1
func.__dict__ = {"note": "k"}
func.__name__ = "fn"
func.__doc__ = "doc"
func = FNS[0]
func = print if False else max
FNS[0] = func2
FNS[0] = func
CLO.bump(4)
CLO.bump(1)
CLO.bump(1.0)
CLO.drop()
CLO = make(1, [1])
CLO = CLO2
CLO2.bump(2)
CLO.__closure__[0].cell_contents = [1, 2, 3]
CLO.__closure__[0].cell_contents.append(3)
PART = functools.partial(func, 1, c=7)
PART = functools.partial(func, 2, c=7)
PART = functools.partial(func2, 1, c=7)
PART.keywords["c"] = 3
PART.__setstate__((func2, (3,), {}, {}))
decorated = deco(lambda a: a * 3)
decorated.__closure__[0].cell_contents = lambda a: 9
decorated.__wrapped__ = lambda a: 8
LAM = lambda a: a - 1
LAM = lambda a: a + NUM
LAM = len
GETTER = operator.attrgetter("k")
GETTER = operator.attrgetter("v")
ITEMG = operator.itemgetter(1)
NOPE = 1
del NOPE
sys.modules["NOPE"] = sys
sys.modules.pop("NOPE", None)
os.environ["TR_FUZZ"] = "a"
os.environ["TR_FUZZ"] = "b"
os.environ.pop("TR_FUZZ", None)
len = lambda a: 42
del len
abs = 4
del abs
print = 4
del print
isinstance = lambda a, b: "no"
del isinstance
range = list
del range
T2 = T1
T2 = T1.clone()
T1 = T3
T1 = T1.clone()
T1 = torch.arange(6.0).reshape(2, 3)
T1 = torch.arange(6).reshape(2, 3)
T1 = torch.arange(6.0).reshape(3, 2).t()
T1 = torch.arange(6.0).reshape(2, 3).requires_grad_()
T1.add_(1)
T1.requires_grad_(True)
T1.requires_grad_(False)
T1.grad = torch.ones(2, 3)
T1.grad = None
T1.tagged = 4
T1.tagged = 5
del T1.tagged
T1.data = torch.zeros(2, 3)
T1 = nn.Parameter(torch.ones(2, 3))
NET.scale = 3
NET.scale = 2
NET.scale = torch.tensor(2.0)
NET.scale = 2.0
NET.cls_attr = 4
del NET.cls_attr
Net.cls_attr = 2
Net.cls_attr = 1
NET.cfg["s"] = 4
NET.cfg = {"s": 1}
NET.eval()
NET.train()
NET.drop.eval()
NET.drop.p = 1.0
NET.drop.p = 0.0
NET.lin = nn.Linear(3, 3, bias=False)
NET.lin = nn.Linear(3, 5)
NET.lin = NET2.lin
NET.lin = NET.ml[0]
NET.lin = nn.Identity()
NET.lin = Net().lin
NET.lin.weight = NET2.lin.weight
NET.lin.bias = None
NET.lin.bias = nn.Parameter(torch.ones(3))
NET.lin.weight.requires_grad_(False)
NET.lin.weight.requires_grad_(True)
NET.lin.weight.data.mul_(2)
NET.lin.in_features = 9
NET.lin.forward = lambda x: x + 5
NET.lin.__dict__.pop("forward", None)
NET.forward = lambda x: x * 7
NET.__dict__.pop("forward", None)
Net.forward = lambda self, x: x - 9
Net.forward = lambda self, x: self.lin(x)
Net.helper = lambda self, x: x - 9
NET.seq.append(nn.Tanh())
NET.seq[1] = nn.Sigmoid()
NET.seq[1] = nn.ReLU()
del NET.seq[-1]
NET.ml.append(nn.Linear(3, 3, bias=False))
del NET.ml[0]
NET.ml[0] = nn.Tanh()
NET.ml = nn.ModuleList([NET.lin, NET.lin])
NET.ml = Net().ml
NET.md["c"] = nn.Tanh()
del NET.md["b"]
NET.md["b"] = nn.Identity()
NET.md["a"] = NET.md["a"]
NET.w = nn.Parameter(torch.zeros(3))
NET.w.data = torch.ones(3)
del NET.w; NET.w = torch.ones(3)
del NET.w; NET.w = nn.Parameter(torch.ones(3))
del NET.w; NET.register_buffer("w", torch.ones(3))
NET.buf.add_(1)
NET.buf = torch.ones(3)
NET.buf = None
NET.register_buffer("buf", torch.zeros(3))
NET.none = nn.Linear(1, 1)
del NET.none; NET.none = None
NET.pl.append(nn.Parameter(torch.zeros(3)))
NET.pl[0] = nn.Parameter(torch.zeros(3))
NET.extra = 4
del NET.extra
NET.register_parameter("extra", nn.Parameter(torch.ones(1)))
NET.register_buffer("extra", None)
NET.add_module("nope", nn.Identity())
NET.double()
NET.float()
NET.requires_grad_(False)
NET.requires_grad_(True)
H = NET.register_forward_hook(lambda m, i, o: o + 1)
H = NET.lin.register_forward_hook(lambda m, i, o: o + 1)
H = NET.register_forward_pre_hook(lambda m, i: (i[0] + 1,))
H = NET.lin.register_forward_pre_hook(lambda m, i, k: ((i[0] + 1,), k), with_kwargs=True)
H = NET.ml[0].register_forward_hook(lambda m, i, o: o * 2)
H.remove()
H = NET.register_full_backward_hook(lambda m, i, o: (i[0] * 2 if i[0] is not None else None,))
NET.lin.weight.register_hook(lambda g: g * 2)
torch.nn.utils.parametrize.register_parametrization(NET.lin, "weight", nn.Tanh())
torch.nn.utils.parametrize.remove_parametrizations(NET.lin, "weight")
NET.__class__ = type("NetSub", (Net,), {"forward": lambda self, x: x * 11})
NET.__class__ = Net
NET = NET2
NET = Net()
Net.__call__ = lambda self, x: x * 13
del Net.__call__
Net.__getattr__ = lambda self, name: nn.Module.__getattr__(self, name)
del Net.__getattr__
Net.scale = property(lambda self: 8)
del Net.scale
F = types.SimpleNamespace(relu=lambda x: x + 8, linear=F.linear, dropout=F.dropout)
F = torch.nn.functional
math = types.SimpleNamespace(pi=3, floor=round)
import math
ListSub.__getitem__ = lambda self, i: 33
del ListSub.__getitem__
ListSub.__iter__ = lambda self: iter((5, 6))
del ListSub.__iter__
DictSub.__getitem__ = lambda self, i: 33
del DictSub.__getitem__
DictSub.get = lambda self, i, d=None: 33
del DictSub.get
DictSub.__contains__ = lambda self, i: "maybe"
del DictSub.__contains__
DictSub.items = lambda self: [(1, 2)]
del DictSub.items
OBJ.k = 4; Base.k = property(lambda self: 99)
OBJ.items = ListSub([4, 5])
collections.abc.Sized.register(Sub)
"""

ARGUMENTS = """
X = torch.arange(6.0).reshape(2, 3)
X = torch.arange(12.0).reshape(4, 3)[::2]
X = torch.arange(12.0).reshape(4, 3)[2:]
X = torch.arange(6.0).reshape(3, 2).t()
X = torch.arange(6.0).reshape(2, 3).requires_grad_()
X = torch.arange(6.0).reshape(2, 3).requires_grad_() * 2
X = torch.arange(9.0).reshape(3, 3)
X = torch.arange(6).reshape(2, 3)
X = torch.arange(6.0).double().reshape(2, 3)
X = nn.Parameter(torch.arange(6.0).reshape(2, 3))
X = Y
X = Y[:]
X = T1
X.tagged = 4
X.add_(1)
Y = torch.ones(2, 3)
Y = X
Y = X.view(2, 3)
Y = X.detach()
O = OBJ
O = Sub()
O = Other()
O = OBASE
O = OBJ2
L = LST
L = [1, 2, 3]
L = (1, 2, 3)
L = []
L = ListSub([1])
L.append(1)
K = {"a": 1}
K = {"b": 1, "a": 2}
K = {"a": 2, "b": 1}
K = {}
K = {"dd": 4}
R = (1,)
R = (True,)
R = (1, 2, 3)
R = ()
R = (1, [2])
f.__defaults__ = (4,)
f.__defaults__ = ([1],)
f.__defaults__ = (1,)
f.__kwdefaults__ = {"dd": 5}
f.__kwdefaults__ = {"dd": 2}
"""
"""Of the function and of the calls that follow: `X Y O L`, more positional `R` and keyword `K`."""

MODES = """
torch.set_grad_enabled(False)
torch.set_grad_enabled(True)
torch.set_default_dtype(torch.float64)
torch.set_default_dtype(torch.float32)
torch.use_deterministic_algorithms(True)
torch.use_deterministic_algorithms(False)
torch.set_float32_matmul_precision("high")
torch.set_float32_matmul_precision("highest")
"""
