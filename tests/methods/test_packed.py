"""Packed-Ensembles: M thin networks, against the published form in grouped convolutions and its
numbers of parameters."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polymode as pm
from polymode.core.safe_files import read_json, write_json
from polymode.nets.conversion import convert
from polymode.nets.conversion.conversion import Sample, convert_networks
from polymode.nets.conversion.thin import Thinning, plan
from polymode.posterior.manifest import SCHEMA
from polymode.tracing.calling import Calling
from polymode.training.data import Arrays

STREAM = torch.Generator().manual_seed(0)
X = torch.randn(16, 3, 8, 8, generator=STREAM)
LABELS = torch.arange(16) % 3
QUIET = {"progress": "silent", "epochs": 0}


def images() -> pm.Task:
    return pm.Task(train=(X, LABELS), likelihood="categorical")


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(108, 20), nn.Tanh(),
        nn.Linear(20, 3),
    )  # fmt: skip


def number(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def thin(net: nn.Module, x: Tensor, thinning: Thinning) -> nn.Module:
    sample = Sample(net, x, frozenset(name for name, _ in net.named_parameters()), Calling())
    conversion = plan(sample, thinning)
    return convert(type(net)(*net) if isinstance(net, nn.Sequential) else net, conversion)


def test_equals_one_network_of_grouped_convolutions() -> None:
    """The published form, M members packed along the channels in grouped layers, in float64."""
    post = pm.fit("packed", net=convnet, task=images(), dtype=torch.float64, num_modes=4, **QUIET)
    p = {name: tensor.detach() for name, tensor in post.stack.params.items()}
    assert p["0.weight"].shape == (4, 4, 3, 3, 3)
    assert p["3.weight"].shape == (4, 6, 4, 3, 3)
    x = X.double()

    def packed(name: str) -> tuple[Tensor, Tensor]:
        return p[f"{name}.weight"].flatten(0, 1), p[f"{name}.bias"].flatten()

    z = F.conv2d(x, *packed("0"), padding=1)  # the first layer: one group
    mean, var = torch.zeros(16).double(), torch.ones(16).double()
    z = F.relu(F.batch_norm(z, mean, var, *packed("1")))
    z = F.relu(F.conv2d(z, *packed("3"), stride=2, groups=4))
    z = z.unflatten(1, (4, -1)).flatten(2).flatten(1)[..., None]  # member by member
    for name in ("6", "8"):
        weight, bias = packed(name)
        z = F.conv1d(torch.tanh(z) if name == "8" else z, weight[..., None], bias, groups=4)
    published = z.squeeze(-1).unflatten(1, (4, -1)).transpose(0, 1)
    torch.testing.assert_close(post.stack(x), published, rtol=1e-12, atol=1e-13)


class Bottleneck(nn.Module):
    def __init__(self, n: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2, self.bn3 = nn.BatchNorm2d(width), nn.BatchNorm2d(4 * width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or n != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(n, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        z = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(z)) + self.shortcut(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    n = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for k in range(blocks):
            layers.append(Bottleneck(n, 64 * 2**stage, 2 if stage and not k else 1))
            n = 256 * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 100))


@pytest.mark.parametrize(
    ("build", "whole", "gamma", "published"),
    [
        ("resnet18", 11_173_962, 1, 11_190_440),
        ("resnet18", 11_173_962, 2, 8_175_784),  # 8.18 M in the paper's table
        ("resnet50", 23_705_252, 1, 23_965_200),
        ("resnet50", 23_705_252, 2, 14_921_232),
    ],
)
def test_published_numbers_of_parameters(build, whole, gamma, published) -> None:
    """Of the authors' ResNets for CIFAR-10 and CIFAR-100, α = 2 and M = 4. In theirs, the first
    convolution of a block has no sub-groups."""
    with torch.device("meta"):
        net = pm.nets.resnet18((3, 32, 32), 10) if build == "resnet18" else resnet50()
        x = torch.zeros(2, 3, 32, 32)
    assert number(net) == whole
    names = frozenset(name for name, _ in net.named_modules() if name.endswith("conv1"))
    thinner = thin(net, x, Thinning(2.0, 4, gamma, names))
    assert 4 * number(thinner) == published


def test_with_alpha_as_many_as_members_it_is_the_deep_ensemble() -> None:
    options = {"task": images(), "num_modes": 2, "epochs": 3, "batch_size": 8, "progress": "silent"}
    packed = pm.fit("packed", net=convnet, alpha=2.0, **options)
    ensemble = pm.fit("deep_ensemble", net=convnet, **options)
    for name, tensor in ensemble.weights.tensors().items():
        assert torch.equal(packed.weights.tensors()[name], tensor), name


def test_units_keep_the_variance_of_what_they_get() -> None:
    """Standard deviations of weights × √fan-in are the original's to 3 %, of 3·10⁴ weights or more
    (s.e. below 0.5 %); zeros stay."""
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(16, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.Linear(512, 3))
    nn.init.zeros_(wide[3].weight)
    narrow = thin(copy.deepcopy(wide), torch.zeros(2, 16), Thinning(1.0, 4))
    assert narrow[2].weight.shape == (128, 256)
    before, after = wide[2].weight.std() * 1024**0.5, narrow[2].weight.std() * 256**0.5
    torch.testing.assert_close(after, before, rtol=0.03, atol=0)
    assert not narrow[3].weight.any()


class Patches(nn.Module):
    """Attention, positions and a tied table, as a transformer has them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 16)
        self.positions = nn.Parameter(torch.randn(1, 5, 16))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.words(x) + self.positions).mean(1))


@pytest.mark.parametrize("name", ["transformer", "vit", "lenet", "resnet8", "depthwise", "groups"])
def test_everyday_networks_are_fitted_and_loaded(name, tmp_path) -> None:
    x, net = X, None
    if name == "transformer":
        x, net = torch.randint(6, (16, 5), generator=STREAM), Patches
    elif name == "depthwise":
        net = lambda: nn.Sequential(  # noqa: E731
            nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3, groups=8), nn.GroupNorm(2, 16), nn.Flatten(),
            nn.Linear(256, 3),
        )  # fmt: skip
    elif name == "groups":
        net = lambda: nn.Sequential(  # noqa: E731
            nn.Flatten(), nn.Linear(192, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(),
            nn.Linear(16, 3),
        )  # fmt: skip
    elif name == "vit":
        net = pm.nets.vit
    else:
        x, net = torch.randn(16, 3, 16, 16, generator=STREAM), getattr(pm.nets, name)
    task = pm.Task(train=(x, LABELS), likelihood="categorical")
    options = {"num_modes": 4, "epochs": 1, "batch_size": 8, "progress": "silent"}
    gamma = 2 if name == "groups" else 1
    posts = [
        pm.fit("packed", net=net, task=task, execution=way, dtype=torch.float64, gamma=gamma,
               **options)
        for way in ("loop", "batched")
    ]  # fmt: skip
    first, second = (post.predict(x).log_probs for post in posts)
    torch.testing.assert_close(first, second, rtol=1e-7, atol=1e-9)
    posts[0].save(tmp_path)
    loaded = pm.load(tmp_path, net=net)
    torch.testing.assert_close(loaded.predict(x).log_probs, first, rtol=1e-12, atol=1e-13)
    whole = pm.fit("map", net=net, task=task, **QUIET).stack.num_parameters
    assert posts[0].stack.num_parameters < whole
    assert torch.equal(posts[0][:2].predict(x).log_probs, first[:2])


def test_a_posterior_is_trained_on() -> None:
    post = pm.fit("packed", net=convnet, task=images(), num_modes=2, alpha=1.0, **QUIET)
    more = pm.fit("packed", net=post, task=images(), epochs=2, alpha=1.0, progress="silent")
    shapes = [{n: t.shape for n, t in p.stack.params.items()} for p in (post, more)]
    assert shapes[0] == shapes[1]
    assert not torch.equal(post.stack.params["0.weight"], more.stack.params["0.weight"])


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.mix = nn.Linear(6, 6), nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.a(x)
        return self.head(self.mix(z, z, z)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.GRU(6, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])


@pytest.mark.parametrize(
    ("net", "options", "message"),
    [
        (Heads, {"num_modes": 4}, "alpha=2 and num_modes=4.*'mix' .2 heads do not divide 3"),
        (Recurrent, {"num_modes": 4}, r"no conversion for 'cells' \(GRU\).*take alpha=num_modes"),
        (Heads, {"num_modes": 1}, "`alpha` of packed must be at most `num_modes`, got 2 for 1 mem"),
        (Heads, {"alpha": 0.0}, "`alpha` of Packed must be > 0"),
        (Heads, {"gamma": 0}, "`gamma` of Packed must be >= 1|`gamma` of Packed"),
        (Heads, {"ungrouped": "("}, "`ungrouped` of Packed must be a regular expression or None"),
    ],
)
def test_what_cannot_be_thin_is_refused_in_one_line(net, options, message) -> None:
    task = pm.Task(train=(torch.randn(16, 5, 6), LABELS), likelihood="categorical")
    with pytest.raises(ValueError, match=message) as refused:
        pm.fit("packed", net=net, task=task, **QUIET, **options)
    assert "\n" not in str(refused.value)


def test_sub_groups_that_cannot_be_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="`gamma` of packed is 2, but no layer gets sub-groups"):
        pm.fit("packed", net=lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ReLU(),
               nn.Linear(8, 3)), task=images(), gamma=2, **QUIET)  # fmt: skip


def test_a_damaged_conversion_is_refused(tmp_path) -> None:
    post = pm.fit("packed", net=convnet, task=images(), **QUIET)
    post.save(tmp_path)
    path = tmp_path / "posterior.json"
    for change, message in (
        ({"kind": "thick"}, "no conversion 'thick'"),
        ({"numbers": {"layers": {}}}, "cannot be converted as it was"),
    ):
        manifest = read_json(path, SCHEMA)
        manifest["conversion"] |= change
        write_json(path, manifest)
        with pytest.raises(ValueError, match=message) as refused:
            pm.load(tmp_path, net=convnet)
        assert "\n" not in str(refused.value)


def test_networks_are_converted_once() -> None:
    """A list of modules stays a list, and what is not changed is shared with what was given."""
    nets = [convnet(), convnet()]
    data = Arrays(X, LABELS)
    made = convert_networks(nets, lambda sample: plan(sample, Thinning(1.0, 2)), data, None, None)
    again = convert_networks(made, lambda _: pytest.fail("planned twice"), data, None, None)
    assert all(a is b for a, b in zip(made, again, strict=True))
    assert made[0][0].weight.shape == (4, 3, 3, 3)
    assert nets[0][0].weight.shape == (8, 3, 3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made[0](X).shape == (16, 3)


def test_widths_that_are_rounded_up_by_more_than_a_tenth_are_said_once() -> None:
    """10 units become ⌈20 / 3⌉ = 7, a twentieth more, without a word; 5 become 4, a fifth more."""
    x = torch.randn(12, 4)
    task = pm.Task(train=(x, (x[:, 0] > 0).long()), likelihood="categorical")
    options = {"task": task, "epochs": 0, "num_modes": 3, "alpha": 2, "progress": "silent"}

    def net(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, width), nn.Linear(width, 2))

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pm.fit("packed", net=lambda: net(10), **options)
        assert not [w for w in said if "rounds" in str(w.message)]
        pm.fit("packed", net=lambda: net(5), **options)
    (line,) = [str(w.message) for w in said if "rounds" in str(w.message)]
    assert "3.33333 units of '2' up to 4 per member, 20% more; take `num_modes`" in line
