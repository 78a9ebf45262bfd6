"""Residual branches, and what only looks like them, in the forms that people write them in."""

import mindspore as ms
from mindspore import Parameter, Tensor, mint, nn, ops


class Layers(nn.Cell):
    """conv1 bn1 conv2 bn2 conv3 bn3, of which a construct takes what it wants."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (nn.Conv2d(4, 4, 3) for _ in range(3))
        self.bn1, self.bn2, self.bn3 = (nn.BatchNorm2d(4) for _ in range(3))
        self.relu, self.add, self.add_n, self.concat = nn.ReLU(), ops.Add(), ops.AddN(), ops.Concat(1)
        self.some, self.nothing, self.scale = True, None, Parameter(Tensor([1.0], ms.float32), name="scale")
        self.pairs = ((self.conv1, self.bn1), (self.conv2, self.bn2))

    def branch(self, x: Tensor, relu: bool = True) -> Tensor:
        out = self.bn1(self.conv1(x))
        if relu:
            out = ops.relu(out)
        return self.bn2(self.conv2(out))


class PlainAdd(Layers):
    def construct(self, x):
        return self.branch(x) + x


class Swapped(Layers):
    def construct(self, x):
        return x + self.branch(x)


class Augmented(Layers):
    def construct(self, x):
        out = self.branch(x)
        out += x
        return out


class OpsAdd(Layers):
    def construct(self, x):
        return ops.add(self.branch(x), x)


class MintAdd(Layers):
    def construct(self, x):
        return mint.add(x, self.branch(x))


class TensorAdd(Layers):
    def construct(self, x):
        return self.branch(x).add(x)


class AddPrimitive(Layers):
    def construct(self, x):
        return self.add(self.branch(x), x)


class AddPrimitiveMadeHere(Layers):
    def construct(self, x):
        return ops.Add()(self.branch(x), x)


class AddNPrimitive(Layers):
    def construct(self, x):
        return self.add_n([self.branch(x), x])


class ThreeBranches(Layers):
    def construct(self, x):
        return self.branch(x) + self.bn3(self.conv3(x)) + x


class Scaled(Layers):
    def construct(self, x):
        return x + 0.1 * self.scale * self.branch(x)


class Keywords(Layers):
    def construct(self, x):
        return self.branch(relu=False, x=x) + x


class TupleAssignment(Layers):
    def construct(self, x):
        identity, out = x, self.branch(x)
        a, (b, _) = identity, (out, None)
        return a + b


class ConditionalExpression(Layers):
    def construct(self, x):
        return self.branch(x) + (x if self.nothing is None and self.some else self.conv3(x))


class LoopOverPairs(Layers):
    def construct(self, x):
        out = x
        for i, (conv, bn) in enumerate(self.pairs):
            out = bn(conv(out))
            if i == 0:
                out = self.relu(out)
        return out + x


class NamesFromNumbers(Layers):
    def construct(self, x):
        out, i = x, 1
        while i < 3:
            out = getattr(self, f"bn{i}")(getattr(self, "conv" + str(i))(out))
            i += 1
        return out + x


class ListsOfTensors(Layers):
    def construct(self, x):
        outs = [x]
        for conv, bn in self.pairs:
            outs.append(bn(conv(outs[-1])))
        return sum([outs[0], outs[-1]])


class Training(Layers):
    """The training flag is data: training and evaluation get the same rewrite."""

    def construct(self, x):
        out = self.branch(x)
        if self.training:
            out = ops.dropout(out, 0.1)
        return out + x


class SometimesWithoutBranch(Layers):
    def construct(self, x):
        if not self.training:
            out = x
        else:
            out = self.branch(x)
            out = ops.relu(out)
        return out + x


class Shapes(Layers):
    def construct(self, x):
        n, c, h, w = x.shape
        if h != w:
            x = ops.reshape(x, (n, c, w, h))
        return self.branch(x) + x


class OptionalArgument(Layers):
    def construct(self, x, identity=None):
        if identity is None:
            identity = x
        return self.branch(x) + identity


class Inherited(PlainAdd):
    def construct(self, x):
        return ops.relu(super().construct(x))


def convolve(x, conv, bn):
    return ops.relu(bn(conv(x)))


class Helper(Layers):
    def construct(self, x):
        return self.bn2(self.conv2(convolve(x, self.conv1, self.bn1))) + x


class Jitted(Layers):
    @ms.jit
    def construct(self, x):
        return self.branch(x) + x


class SqueezeExcite(Layers):
    def construct(self, x):
        out = self.branch(x)
        weight = ops.sigmoid(self.conv3(ops.mean(out, (2, 3), keep_dims=True)))
        return out * weight + x


class AugmentedTuple(Layers):
    def construct(self, x):
        outs, named = [x], {}
        for conv, bn in self.pairs:
            outs += (bn(conv(outs[-1])),)
        named["last"] = outs[-1]
        return named["last"] + outs[0]


class TwoInputs(Layers):
    def construct(self, x, y):
        return self.branch(x) + x, y


FORMS = [
    PlainAdd,
    Swapped,
    Augmented,
    OpsAdd,
    MintAdd,
    TensorAdd,
    AddPrimitive,
    AddPrimitiveMadeHere,
    AddNPrimitive,
    ThreeBranches,
    Scaled,
    Keywords,
    TupleAssignment,
    ConditionalExpression,
    LoopOverPairs,
    NamesFromNumbers,
    ListsOfTensors,
    Training,
    SometimesWithoutBranch,
    Shapes,
    OptionalArgument,
    Inherited,
    Helper,
    Jitted,
    SqueezeExcite,
    AugmentedTuple,
    TwoInputs,
]


class NoAddition(Layers):
    def construct(self, x):
        return self.branch(x)


class Concatenation(Layers):
    def construct(self, x):
        return self.concat((self.branch(x), x))


class NoCommonOrigin(Layers):
    def construct(self, x, y):
        return self.branch(x) + y


class FromElsewhere(Layers):
    """What is multiplied into the branch does not come from its origin."""

    def construct(self, x, y):
        return self.conv3(x) * self.branch(y) + x


class Bias(Layers):
    def construct(self, x):
        return self.branch(x) + self.scale


class ShapeAdded(Layers):
    def construct(self, x):
        return self.branch(x) + x.shape[0]


class ShapeOpAdded(Layers):
    def construct(self, x):
        return self.branch(x) + ops.shape(x)[0] + ops.Rank()(x) + len(x)


class BothDeep(Layers):
    """No shortcut: two models added up."""

    def construct(self, x):
        return self.branch(x) + self.conv3(self.conv3(x))


class TwoLosses(Layers):
    def construct(self, x, y):
        return ops.cross_entropy(self.branch(x), y) + ops.cross_entropy(self.conv3(x), y)


class TwoMeans(Layers):
    """Losses by hand: single numbers, no feature maps."""

    def construct(self, x):
        return self.branch(x).abs().mean() + ops.mean(self.conv3(x))


class FirstInBranch(Layers):
    """Pre-activation: bn1 comes before the branch's first convolution, bn2 is its last batch norm."""

    def construct(self, x):
        x = self.conv3(x)
        out = self.conv1(ops.relu(self.bn1(x)))
        return self.conv2(ops.relu(self.bn2(out))) + x


class Tapped(Layers):
    """What bn1 makes is also used outside the branch."""

    def construct(self, x):
        first = self.bn1(self.conv1(x))
        return self.bn2(self.conv2(first)) + x, first


class TappedByGate(Layers):
    """One way from bn1 to the addition has no other batch norm."""

    def construct(self, x):
        first = self.bn1(self.conv1(x))
        return self.bn2(self.conv2(first)) * first + x


class SharedWithTheEnd(Layers):
    def construct(self, x):
        out = self.bn1(self.conv2(ops.relu(self.bn1(self.conv1(x)))))
        return out + x


class SharedWithTheStem(Layers):
    def construct(self, x):
        x = self.bn1(self.conv3(x))
        return self.branch(x) + x


class Read(Layers):
    def construct(self, x):
        return self.branch(x) * ops.mean(self.bn1.gamma) + x


class HandedOver(Layers):
    def construct(self, x):
        return self.branch(x) + x, ms.recompute(self.bn1, x)


class TrainingTakesAnotherWay(Layers):
    def construct(self, x):
        if self.training:
            return self.bn1(self.conv1(x)) + x
        return self.branch(x) + x


class OtherNorm(nn.BatchNorm2d):
    def construct(self, x):
        return ops.relu(super().construct(x))


class NormOfItsOwn(PlainAdd):
    def __init__(self) -> None:
        super().__init__()
        self.bn1 = OtherNorm(4)


NOTHING = [
    NoAddition,
    Concatenation,
    NoCommonOrigin,
    FromElsewhere,
    Bias,
    ShapeAdded,
    ShapeOpAdded,
    BothDeep,
    TwoLosses,
    TwoMeans,
    FirstInBranch,
    Tapped,
    TappedByGate,
    SharedWithTheEnd,
    SharedWithTheStem,
    Read,
    HandedOver,
    TrainingTakesAnotherWay,
    NormOfItsOwn,
]
