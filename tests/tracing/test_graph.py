"""The tracer: graphs equal to those of `torch.fx`, and nothing that another thread could see."""

import copy
import functools
import math
import threading
from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from polymode import nets
from polymode.nets.filter_response import FilterResponseNorm2d
from polymode.tracing.graph import traced
from polymode.tracing.operations import repeat_rows


def root_of(number):
    return math.sqrt(number)


def twice(method):
    @functools.wraps(method)
    def wrapper(self, x):
        return method(self, x) * sqrt(x.size(0))

    return wrapper


def through_another(number):
    return root_of(number) if number is not None else ping(number)


def ping(number):
    return through_another(number)


@fx.wrap
def shape_of(x):
    return list(x.shape)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(-2, -1) / math.sqrt(x.size(-1))
        return F.softmax(scores, -1) @ self.v(x)


class Inherited(Attention):
    """`super()` leads to a method that takes the root of a size."""

    def forward(self, x):
        return super().forward(x) + self.bias

    @property
    def bias(self):
        return 1.0


class Roots(nn.Module):
    """Every way to reach `math`: helpers, closures, properties, an import within."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    @staticmethod
    def scale(x):
        return sqrt(x.size(-1))

    @classmethod
    def floor(cls, x):
        return math.floor(x.size(-1))

    @property
    def eight(self):
        return sqrt(64)

    def helper(self, x):
        import math as inner

        return inner.log(x.size(0))

    @twice
    def forward(self, x):
        local = lambda n: through_another(n)  # noqa: E731
        y = self.a(x) * local(x.size(1)) + self.scale(x) + self.floor(x) + self.eight
        return y * self.helper(x)


class Wrapped(nn.Module):
    def forward(self, x):
        return x.new_zeros(shape_of(x)) + x


class Parameters(nn.Module):
    """Parameters used by themselves, one under two names, and in containers of torch."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))
        self.other = self.w
        self.rows = nn.ParameterList([torch.randn(4), torch.randn(4)])
        self.named = nn.ParameterDict({"b": torch.randn(4)})
        self.register_buffer("shift", torch.randn(4))
        self.plain = torch.ones(4)

    def forward(self, x, scale=2.0, *rest):
        w = self.w.exp() @ self.other.t()
        y = F.linear(x, w, self.rows[0]) * self.named["b"] + self.shift + self.plain
        for row in self.rows:
            y = y * row.sigmoid()
        return y * scale + torch.arange(4)


class Sharing(nn.Module):
    """One layer under two names and used three times."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.body = nn.Sequential(self.first, nn.ReLU())

    def forward(self, x):
        return self.second(self.body(self.first(x)))


class Custom(nn.Module):
    """`__getattr__`, `__call__` and `__slots__` of its own, exact types, a registry of classes."""

    __slots__ = ("memo",)
    registry = {}

    def __init_subclass__(cls, **kwargs):
        Custom.registry[cls.__name__] = cls

    def __init__(self):
        super().__init__()
        self.raw = nn.Parameter(torch.randn(4))
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])

    def __getattr__(self, name):
        if name == "positive":
            return nn.Module.__getattr__(self, "raw").exp()
        return super().__getattr__(name)

    def __call__(self, x):
        return super().__call__(x) + 1

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) * (2 if type(layer) is nn.Linear else math.sqrt(x.size(1)))
        return x * self.positive


class Registered(Custom):
    pass


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Registered()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.inner(x) / self.scale


class Hidden(nn.Module):
    """A layer in a list that torch does not know of."""

    def __init__(self):
        super().__init__()
        self.a, self.hidden = nn.Linear(4, 4), [nn.ReLU()]

    def forward(self, x):
        return self.hidden[0](self.a(x))


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Unpacking(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 3, batch_first=True)
        self.mha = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, steps, _ = x.shape
        h, _ = self.mha(x, x, x, need_weights=False)
        h, last = self.rnn(h)
        return torch.cat([h.reshape(batch, -1), last[0]], 1) + steps


def graph_again():
    """A module that was made of a graph, with one step of this library's."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    graph = fx.Tracer().trace(module)
    first = list(graph.nodes)[1]
    with graph.inserting_after(first):
        repeated = graph.call_function(repeat_rows, (first, 3))
    first.replace_all_uses_with(repeated, delete_user_cb=lambda user: user is not repeated)
    return fx.GraphModule(module, graph)


def inside(module):
    return nn.Sequential(nn.Linear(4, 4), module, nn.ReLU())


EVERYDAY = {
    **{name.__name__: name for name in (Attention, Inherited, Roots, Parameters, Sharing)},
    **{name.__name__: name for name in (Custom, Registered, Around, Unpacking, Wrapped)},
    "of a graph, inside": lambda: inside(fx.GraphModule(Sharing(), fx.Tracer().trace(Sharing()))),
    "attention, inside": lambda: inside(Inherited()),
    "roots, inside": lambda: inside(Roots()),
    "weight norm": lambda: inside(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))),
    "spectral norm": lambda: inside(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))),
    "embedding": lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.LayerNorm(8)),
    "transformer": lambda: inside(nn.TransformerEncoderLayer(4, 2, 8)),
    "norms": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), FilterResponseNorm2d(4), nn.PReLU()),
    "mlp": lambda: nets.mlp((4,), 2, hidden=(8,), dropout=0.1),
    "lenet": lambda: nets.lenet((1, 28, 28), 10),
    "cnn": lambda: nets.cnn((3, 16, 16), 10),
    "optunet": lambda: nets.optunet((1, 28, 28), 10),
    "resnet8": lambda: nets.resnet8((3, 16, 16), 10),
    "vit": lambda: nets.vit((3, 16, 16), 10),
    "unet": lambda: nets.unet((1, 16, 16), 1),
}


def described(graph):
    """Every node as what makes it up; functions of one name that differ stay apart."""
    return [
        (node.op, node.name, node.target, str(node.args), str(node.kwargs), str(node.type))
        for node in graph.nodes
    ]


@pytest.mark.parametrize("name", EVERYDAY)
@pytest.mark.parametrize("training", [True, False])
def test_graphs_are_those_of_torch_fx_node_by_node(name, training) -> None:
    module = EVERYDAY[name]().train(training)
    expected = fx.Tracer().trace(copy.deepcopy(module))
    copied, graph = traced(module)
    assert described(graph) == described(expected)
    if "graph" not in name:  # each module of a graph has a class of its own
        assert [type(m) for m in copied.modules()] == [type(m) for m in module.modules()]


def test_steps_of_this_library_stay_one_step() -> None:
    _, graph = traced(graph_again())
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [repeat_rows]


@pytest.mark.parametrize("make", [Hidden, Branching])
def test_networks_without_a_graph_have_none_here_either(make) -> None:
    with pytest.raises(Exception) as expected:
        fx.Tracer().trace(make())
    with pytest.raises(type(expected.value), match=str(expected.value).splitlines()[0][:30]):
        traced(make())


def test_further_leaves_are_one_step() -> None:
    _, graph = traced(inside(Attention()), lambda module: isinstance(module, Attention))
    calls = [node.target for node in graph.nodes if node.op == "call_module"]
    assert calls == ["0", "1", "2"]


@pytest.mark.parametrize("name", ["Roots", "Around", "Parameters", "attention, inside"])
def test_the_graph_computes_what_the_network_does(name) -> None:
    module, x = EVERYDAY[name]().eval(), torch.randn(3, 4)
    copied, graph = traced(module)
    assert torch.equal(fx.GraphModule(copied, graph)(x), module(x))
    assert torch.equal(copied(x), module(x))  # nothing of the tracer is left in the copy


def test_the_module_that_is_traced_stays_as_it_is() -> None:
    module = Around()
    before = {path: dict(vars(each)) for path, each in module.named_modules()}
    registry, kinds = dict(Custom.registry), [type(each) for each in module.modules()]
    traced(module)
    after = {path: dict(vars(each)) for path, each in module.named_modules()}
    assert {path: facts.keys() for path, facts in after.items()} == {
        path: facts.keys() for path, facts in before.items()
    }
    assert Custom.registry == registry
    assert [type(each) for each in module.modules()] == kinds


def test_a_failed_trace_leaves_nothing_behind() -> None:
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.seen = []

        def forward(self, x):
            self.seen.append(self)
            raise KeyError("here")

    module, held = Fails(), []
    module.seen = held
    with pytest.raises(KeyError, match="here"):
        traced(module)
    assert not held and "_call_impl" not in vars(module)
    assert type(module._parameters) is dict


def test_other_threads_see_no_change_of_torch_math_or_their_own_functions() -> None:
    """In the middle of a trace, another thread looks at all that `fx.Tracer` would have patched."""
    looked, problems = threading.Event(), []

    def look() -> None:
        seen = nn.Module.__call__, nn.Module.__getattr__, math.sqrt, math.log, sqrt, shape_of
        if any(now is not before for now, before in zip(seen, untouched, strict=True)):
            problems.append("patched")
        own = Attention()
        if own(torch.ones(1, 2, 4)).shape != (1, 2, 4) or not isinstance(
            own.q.weight, nn.Parameter
        ):
            problems.append("broken")
        looked.set()

    outside = {"look": look}  # of which the forward method's code does not know

    class Waits(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Attention()

        def forward(self, x):
            thread = threading.Thread(target=outside["look"])
            thread.start()
            assert looked.wait(20)
            thread.join()
            return self.body(x) / math.sqrt(x.size(-1)) * shape_of(x)[0]

    untouched = nn.Module.__call__, nn.Module.__getattr__, math.sqrt, math.log, sqrt, shape_of
    _, graph = traced(Waits())
    assert looked.is_set() and problems == []
    assert math.sqrt in [node.target for node in graph.nodes]
