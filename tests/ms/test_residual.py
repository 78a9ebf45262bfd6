"""Which batch norms the data flow says are inner ones. Nothing is run here: the analysis reads the source."""

import inspect

import hypothesis.strategies as st
import mindspore as ms
import pytest
import residual_forms as forms
import residual_networks as networks
from hypothesis import given, settings
from mindspore import Parameter, Tensor, nn, ops
from residual_networks import Basic, Bottleneck, ResNet

from boost_ext.ms.core.cell_tree import cell_names
from boost_ext.ms.surgery.residual import LONGEST_BRANCH, find_inner_norms


def inner(network: nn.Cell) -> list[str]:
    names = cell_names(network)
    return sorted(names[id(norm)] for norm in find_inner_norms(network).norms)


def notes(network: nn.Cell) -> str:
    return "\n".join(find_inner_norms(network).notes)


@pytest.mark.parametrize("block", [Basic, Bottleneck])
def test_resnet(block: type[nn.Cell]) -> None:
    assert inner(ResNet(block)) == sorted(networks.INNER[block])
    assert inner(networks.with_loss(ResNet(block))) == sorted(networks.INNER[block])
    assert notes(ResNet(block)) == ""


@pytest.mark.parametrize("network", forms.FORMS)
def test_a_residual_branch_in_every_form(network: type[nn.Cell]) -> None:
    assert inner(network()) == ["bn1"]
    assert notes(network()) == ""


@pytest.mark.parametrize("network", forms.NOTHING)
def test_nothing_to_remove(network: type[nn.Cell]) -> None:
    assert inner(network()) == []


def test_a_norm_whose_parameters_are_read_is_kept_with_a_note() -> None:
    assert notes(forms.Read()) == "bn1 is kept: it has its attribute gamma read"


class PreActivationBottleneck(forms.Layers):
    def construct(self, x):
        out = self.conv1(ops.relu(self.bn1(x)))
        out = self.conv2(ops.relu(self.bn2(out)))
        return self.conv3(ops.relu(self.bn3(out))) + x


class SharedInside(forms.Layers):
    def construct(self, x):
        out = self.bn1(self.conv2(self.bn1(self.conv1(x))))
        return self.bn2(self.conv3(out)) + x


class UsedTwice(forms.Layers):
    def construct(self, x):
        x = self.branch(x) + x
        return self.branch(x) + x


class Nested(forms.Layers):
    """bn3 closes the inner branch and stays, although the outer branch goes on to bn2."""

    def construct(self, x):
        out = self.bn1(self.conv1(x))
        out = self.bn3(self.conv3(out)) + out
        return self.bn2(self.conv2(out)) + x


class ThroughTheInnerShortcut(forms.Layers):
    """bn1 reaches bn2 on every way, over the inner branch and beside it."""

    def construct(self, x):
        out = self.bn1(self.conv1(x))
        out = self.conv3(out) + out
        return self.bn2(self.conv2(out)) + x


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (PreActivationBottleneck, ["bn2"]),
        (SharedInside, ["bn1"]),
        (UsedTwice, ["bn1"]),
        (Nested, ["bn1"]),
        (ThroughTheInnerShortcut, ["bn1"]),
    ],
)
def test_only_what_the_rule_says(network: type[nn.Cell], expected: list[str]) -> None:
    assert inner(network()) == expected


def test_cells_of_the_library() -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2dBnAct(4, 4, 3, has_bn=True, activation="relu")
            self.b = nn.Conv2dBnAct(4, 4, 3, has_bn=True)
            self.c = nn.DenseBnAct(4, 4, has_bn=True, activation="relu")
            self.d = nn.DenseBnAct(4, 4, has_bn=True)

        def construct(self, x, y):
            return self.b(self.a(x)) + x, self.d(self.c(y)) + y

    assert inner(Net()) == ["a.batchnorm", "c.batchnorm"]


def test_a_convolution_of_its_own_class() -> None:
    class OwnConv(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Parameter(Tensor([1.0], ms.float32), name="weight")
            self.conv2d = ops.Conv2D(4, 3)

        def construct(self, x):
            return self.conv2d(x, self.weight)

    net = forms.PlainAdd()
    net.conv1 = OwnConv()
    assert inner(net) == ["bn1"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["conv", "norm", "relu"]), max_size=9))
def test_the_rule_on_chains(chain: list[str]) -> None:
    """The rule in plain words, on a branch that is a list."""
    make = {"conv": lambda: nn.Conv2d(2, 2, 1), "norm": lambda: nn.BatchNorm2d(2), "relu": nn.ReLU}

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.branch = nn.SequentialCell([make[kind]() for kind in chain])

        def construct(self, x):
            return x + self.branch(x)

    expected = [
        f"branch.{i}"
        for i, kind in enumerate(chain)
        if kind == "norm" and "conv" in chain[:i] and "norm" in chain[i + 1 :]
    ]
    if chain.count("conv") > LONGEST_BRANCH:
        expected = []
    assert inner(Net()) == expected


def test_a_long_skip_connection_is_no_residual_block() -> None:
    class Long(nn.Cell):
        def __init__(self, length: int) -> None:
            super().__init__()
            cells = [c for _ in range(length) for c in (nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))]
            self.branch = nn.SequentialCell(cells)

        def construct(self, x):
            return x + self.branch(x)

    assert len(inner(Long(LONGEST_BRANCH))) == LONGEST_BRANCH - 1
    assert inner(Long(LONGEST_BRANCH + 1)) == []
    assert "a skip connection over 9 convolutions is no residual block" in notes(Long(LONGEST_BRANCH + 1))


class Remembers(forms.Layers):
    def construct(self, x):
        self.seen = x
        return self.branch(x) + x


class LoopOverData(forms.Layers):
    def construct(self, x):
        for row in x:
            x = self.branch(row) + row
        return x


class CellFromData(forms.Layers):
    def construct(self, x):
        norm = self.bn1 if x.sum() > 0 else self.bn2
        return self.bn3(self.conv2(norm(self.conv1(x)))) + x


class Tries(forms.Layers):
    def construct(self, x):
        try:
            return self.branch(x) + x
        except ValueError:
            return x


class Raises(forms.Layers):
    def construct(self, x):
        return self.branch(x) + x + 1 / 0


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (Remembers, "an assignment to self.seen"),
        (LoopOverData, "a loop over data"),
        (CellFromData, "a cell is chosen by data"),
        (Tries, "a Try statement"),
        (Raises, "ZeroDivisionError"),
    ],
)
def test_what_is_not_understood_is_left_alone_and_noted(network: type[nn.Cell], reason: str) -> None:
    assert inner(network()) == []
    assert f"the network ({network.__name__}) was not understood: {reason}" in notes(network())


def test_nothing_is_left_of_an_attempt_that_failed() -> None:
    kinds = {node.kind for node in find_inner_norms(Raises()).flow.nodes}
    assert kinds == {"input", "op"}


def test_reading_a_slice_of_cells_does_not_rename_them() -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            cells = (nn.Conv2d(2, 4, 1), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4))
            self.layers = nn.SequentialCell(*cells)

        def construct(self, x):
            out = x
            for layer in self.layers[1:]:
                out = layer(out)
            return out + self.layers[0](x)

    net = Net()
    names = [p.name for p in net.get_parameters()]
    assert inner(net) == ["layers.2"]
    assert [p.name for p in net.get_parameters()] == names


def test_without_source() -> None:
    scope = {"Layers": forms.Layers}
    exec(inspect.getsource(forms.PlainAdd).replace("PlainAdd", "Typed"), scope)
    assert inner(scope["Typed"]()) == []
    assert "(Typed) was not understood: its source is not available" in notes(scope["Typed"]())


def test_blocks_inside_what_is_not_understood() -> None:
    class Outer(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.CellList([forms.PlainAdd(), forms.PlainAdd()])
            self.bn = nn.BatchNorm2d(4)

        def construct(self, x):
            for row in x:
                x = self.bn(self.blocks[0](row))
            return x

    assert inner(Outer()) == ["blocks.0.bn1", "blocks.1.bn1"]


def test_what_is_not_understood_may_reach_into_its_blocks() -> None:
    class Outer(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.other = forms.PlainAdd(), forms.NamesFromNumbers()

        def construct(self, x):
            for row in x:
                x = self.block(self.block.bn1(self.other(row)))
            return x

    assert inner(Outer()) == []
    assert "block.bn1 is kept: it may be called from a construct that was not understood" in notes(Outer())
