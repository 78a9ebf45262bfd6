"""Architectures in small: with residual blocks, and with sums that are none. Nothing here is run."""

from itertools import pairwise

import mindspore as ms
from mindspore import Parameter, Tensor, mint, nn, ops


def conv_norm(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, *, group: int = 1, relu: bool = True
) -> nn.Cell:
    cells = [nn.Conv2d(inputs, outputs, kernel, stride, group=group), nn.BatchNorm2d(outputs)]
    return nn.SequentialCell(*cells, *([nn.ReLU()] if relu else []))


def stage(inputs: int, outputs: int, stride: int = 2) -> nn.Cell:
    return nn.SequentialCell(conv_norm(inputs, outputs, 3, stride), conv_norm(outputs, outputs))


class FeaturePyramid(nn.Cell):
    """A plain backbone; its maps go down the pyramid by additions."""

    def __init__(self, pool: bool = False) -> None:
        super().__init__()
        self.stage1, self.stage2, self.stage3 = stage(3, 8), stage(8, 16, 1 if pool else 2), stage(16, 32)
        self.pool = nn.MaxPool2d(2, 2) if pool else nn.Identity()
        self.lateral1, self.lateral2, self.lateral3 = (nn.Conv2d(c, 4, 1) for c in (8, 16, 32))
        self.smooth = nn.Conv2d(4, 4, 3)

    def up(self, x: Tensor, like: Tensor) -> Tensor:
        return ops.interpolate(x, size=ops.shape(like)[2:], mode="nearest")

    def construct(self, x):
        c1 = self.stage1(x)
        c2 = self.stage2(self.pool(c1))
        p3 = self.lateral3(self.stage3(c2))
        p2 = self.lateral2(c2) + self.up(p3, c2)
        p1 = self.lateral1(c1) + self.up(p2, c1)
        return self.smooth(p1)


class PooledPyramid(FeaturePyramid):
    def __init__(self) -> None:
        super().__init__(pool=True)


class Decoder(nn.Cell):
    """Of LinkNet: narrow, twice as large, wide again."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.before, self.after = nn.Conv2d(inputs, inputs // 4, 1), nn.Conv2d(inputs // 4, outputs, 1)
        self.up = self.make_up(inputs // 4)

    def make_up(self, channels: int) -> nn.Cell:
        return nn.Conv2dTranspose(channels, channels, 2, 2)

    def construct(self, x):
        return self.after(self.up(self.before(x)))


class ResizingDecoder(Decoder):
    def make_up(self, channels: int) -> nn.Cell:
        return nn.Upsample(scale_factor=2.0, mode="nearest", recompute_scale_factor=True)


class ShufflingDecoder(Decoder):
    """Twice as large by a reshape: only the stride of the encoder tells of it."""

    def construct(self, x):
        x = self.before(x)
        n, c, h, w = x.shape
        return self.after(x.reshape(n, c, h, 1, w, 1).broadcast_to((n, c, h, 2, w, 2)).reshape(n, c, 2 * h, 2 * w))


class LinkNet(nn.Cell):
    """The map before a stage is added to what the decoder makes of the map after it."""

    def __init__(self, decoder: type[nn.Cell] = Decoder) -> None:
        super().__init__()
        self.stage1, self.stage2, self.stage3 = stage(3, 8), stage(8, 16), stage(16, 32)
        self.decoder3, self.decoder2, self.decoder1 = decoder(32, 16), decoder(16, 8), decoder(8, 3)

    def construct(self, x):
        e1 = self.stage1(x)
        e2 = self.stage2(e1)
        d2 = self.decoder3(self.stage3(e2)) + e2
        d1 = self.decoder2(d2) + e1
        return self.decoder1(d1) + x


class ResizingLinkNet(LinkNet):
    def __init__(self) -> None:
        super().__init__(ResizingDecoder)


class ShufflingLinkNet(LinkNet):
    def __init__(self) -> None:
        super().__init__(ShufflingDecoder)


class WideAndDeep(nn.Cell):
    """One linear layer beside a tower: the logits are their sum."""

    def __init__(self) -> None:
        super().__init__()
        sizes, cells = (16, 12, 8, 8), []
        for a, b in pairwise(sizes):
            cells += [nn.Dense(a, b), nn.BatchNorm1d(b), nn.ReLU()]
        self.wide, self.deep = nn.Dense(16, 1), nn.SequentialCell(*cells, nn.Dense(8, 1))

    def construct(self, x):
        return ops.sigmoid(self.wide(x) + self.deep(x))


class WideByTable(WideAndDeep):
    """The wide part is a weight for each input."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Parameter(Tensor([0.5] * 16, ms.float32), name="table")

    def construct(self, x):
        return (x * self.table).sum(1, keepdims=True) + self.deep(x)


class Pyramids(nn.Cell):
    """Atrous branches added up, none of which is a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.CellList([stage(4, 4, 1) for _ in range(3)])
        self.one = nn.Conv2d(4, 4, 1)

    def construct(self, x):
        out = self.one(x)
        for branch in self.branches:
            out = out + branch(x)
        return out


class HighResolution(nn.Cell):
    """HRNet's exchange between two resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.high, self.low = stage(4, 4, 1), stage(4, 8, 2)
        self.to_high, self.to_low = conv_norm(8, 4, 1, relu=False), conv_norm(4, 8, 3, 2, relu=False)

    def construct(self, x):
        high, low = self.high(x), self.low(x)
        a = high + ops.interpolate(self.to_high(low), scale_factor=2.0, mode="nearest", recompute_scale_factor=True)
        b = low + self.to_low(high)
        return ops.relu(a), ops.relu(b)


class AutoEncoder(nn.Cell):
    """Its loss by hand: a difference that is squared is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.SequentialCell(
            nn.Dense(8, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dense(4, 8), nn.BatchNorm1d(8)
        )

    def construct(self, x):
        return ((self.encoder(x) - x) ** 2).mean()


class AutoEncoderByProduct(AutoEncoder):
    def construct(self, x):
        error = x - self.encoder(x)
        return (error * error).mean()


class AutoEncoderByAbs(AutoEncoder):
    def construct(self, x):
        return ops.abs(x - self.encoder(x)).mean()


class UNet(nn.Cell):
    """Skip connections by concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.pool = stage(3, 4, 1), stage(4, 8, 1), nn.MaxPool2d(2, 2)
        self.up, self.last = nn.Conv2dTranspose(8, 4, 2, 2), stage(8, 4, 1)

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        return ops.concat((a, b), 1)

    def construct(self, x):
        a = self.down1(x)
        return self.last(self.join(a, self.up(self.down2(self.pool(a)))))


class AddingUNet(UNet):
    def __init__(self) -> None:
        super().__init__()
        self.last = stage(4, 4, 1)

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class ReshapingUNet(AddingUNet):
    """Only the pool tells that the branch goes down and up."""

    def __init__(self) -> None:
        super().__init__()
        self.up = ShufflingDecoder(8, 4)


class DenseBlock(nn.Cell):
    """DenseNet: all maps so far, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.CellList([nn.BatchNorm2d(4 * (i + 1)) for i in range(3)])
        self.convs = nn.CellList([nn.Conv2d(4 * (i + 1), 4, 3) for i in range(3)])

    def construct(self, x):
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = ops.cat((x, conv(ops.relu(norm(x)))), 1)
        return x


class Inception(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv_norm(8, 4, 1), stage(8, 4, 1), conv_norm(8, 4, 1)
        self.pool = nn.MaxPool2d(3, 1, pad_mode="same")

    def construct(self, x):
        return ops.concat((self.a(x), self.b(x), self.c(self.pool(x))), 1)


KEPT = [
    FeaturePyramid,
    PooledPyramid,
    LinkNet,
    ResizingLinkNet,
    ShufflingLinkNet,
    WideAndDeep,
    WideByTable,
    Pyramids,
    HighResolution,
    AutoEncoder,
    AutoEncoderByProduct,
    AutoEncoderByAbs,
    UNet,
    AddingUNet,
    ReshapingUNet,
    DenseBlock,
    Inception,
]


class PreActivation(nn.Cell):
    """ResNet v2's bottleneck: norms before convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.CellList([nn.BatchNorm2d(c) for c in (8, 4, 4)])
        self.convs = nn.CellList([nn.Conv2d(8, 4, 1), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 8, 1)])

    def construct(self, x):
        out = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            out = conv(ops.relu(norm(out)))
        return out + x


class InvertedResidual(nn.Cell):
    """MobileNetV2: wide, depthwise, narrow; an addition only where the shapes are the same."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide = 6 * inputs
        self.conv = nn.SequentialCell(
            nn.Conv2d(inputs, wide, 1), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, group=wide), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, outputs, 1), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.same = stride == 1 and inputs == outputs

    def construct(self, x):
        return x + self.conv(x) if self.same else self.conv(x)


class MobileNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.SequentialCell(conv_norm(3, 4), InvertedResidual(4, 4, 1), InvertedResidual(4, 8, 2))

    def construct(self, x):
        return self.features(x)


class Bottleneck(nn.Cell):
    """ResNeXt's, with groups; ``shortcut`` as its subclasses make it."""

    def __init__(self, inputs: int = 8, stride: int = 1, outputs: int = 8) -> None:
        super().__init__()
        self.a, self.b = conv_norm(inputs, 4, 1), conv_norm(4, 4, 3, stride, group=2)
        self.c = conv_norm(4, outputs, 1, relu=False)
        self.shortcut = self.make_shortcut(inputs, stride, outputs)

    def make_shortcut(self, inputs: int, stride: int, outputs: int) -> nn.Cell:
        if (inputs, stride) == (outputs, 1):
            return nn.SequentialCell([])
        return conv_norm(inputs, outputs, 1, stride, relu=False)

    def branch(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x)))

    def construct(self, x):
        identity = self.shortcut(x) if len(self.shortcut) else x
        return ops.relu(self.branch(x) + identity)


class Wider(Bottleneck):
    def __init__(self) -> None:
        super().__init__(4)


class Strided(Bottleneck):
    def __init__(self) -> None:
        super().__init__(8, 2)


class PooledShortcut(Bottleneck):
    """ResNet-D: the pool has the stride, the projection the channels."""

    def __init__(self, outputs: int = 16) -> None:
        super().__init__(8, 2, outputs)

    def make_shortcut(self, inputs: int, stride: int, outputs: int) -> nn.Cell:
        return nn.SequentialCell(nn.AvgPool2d(2, 2), nn.Conv2d(inputs, outputs, 1), nn.BatchNorm2d(outputs))


class OnlyPooledShortcut(PooledShortcut):
    def __init__(self) -> None:
        super().__init__(8)


class PaddedShortcut(Bottleneck):
    """Option A of the first ResNets: every second pixel, and zeros for the new channels; no weights."""

    def __init__(self) -> None:
        super().__init__(4, 2)

    def construct(self, x):
        x = ops.relu(x)
        shortcut = ops.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))
        return ops.relu(self.branch(x) + shortcut)


class SqueezeAndExcite(Bottleneck):
    """A gate on the branch, over a projection too."""

    def __init__(self, inputs: int = 4) -> None:
        super().__init__(inputs)
        self.mean, self.fc1, self.fc2 = nn.AdaptiveAvgPool2d(1), nn.Dense(8, 2), nn.Dense(2, 8)

    def branch(self, x: Tensor) -> Tensor:
        out = self.c(self.b(self.a(x)))
        gate = ops.sigmoid(self.fc2(ops.relu(self.fc1(self.mean(out).reshape(-1, 8)))))
        return out * gate.reshape(-1, 8, 1, 1)


class SqueezeAndExciteIdentity(SqueezeAndExcite):
    def __init__(self) -> None:
        super().__init__(8)


class LinearBlock(Bottleneck):
    """Of a network for tables."""

    def __init__(self) -> None:
        super().__init__(4)
        self.a, self.b, self.c = (nn.SequentialCell(nn.Linear(i, 8), nn.BatchNorm1d(8), nn.ReLU()) for i in (4, 8, 8))
        self.shortcut = nn.SequentialCell(nn.Linear(4, 8))


class Standardized(nn.Conv2d):
    """A convolution with a construct of its own."""

    def construct(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), True)
        return ops.conv2d(x, weight, stride=self.stride)


class StandardizedShortcut(Bottleneck):
    def make_shortcut(self, inputs: int, stride: int, outputs: int) -> nn.Cell:
        return nn.SequentialCell(Standardized(4, outputs, 1), nn.BatchNorm2d(outputs))

    def construct(self, x):
        return ops.relu(self.branch(x) + self.shortcut(x))


class Difference(Bottleneck):
    def construct(self, x):
        return x - self.branch(x)


class OtherDifference(Bottleneck):
    def construct(self, x):
        return ops.relu(self.branch(x) - x) ** 2


class DifferenceByName(Bottleneck):
    def construct(self, x):
        return ops.sub(x, self.branch(x))


class DifferenceByMint(Bottleneck):
    def construct(self, x):
        return mint.sub(x, self.branch(x))


class DifferenceByPrimitive(Bottleneck):
    def construct(self, x):
        return ops.Sub()(x, self.branch(x))


class DifferenceByMethod(Bottleneck):
    def construct(self, x):
        return x.sub(self.branch(x))


class DifferenceInPlace(Bottleneck):
    def construct(self, x):
        out = x
        out -= self.branch(x)
        return out


BLOCKS = [
    Bottleneck,
    Wider,
    Strided,
    PooledShortcut,
    OnlyPooledShortcut,
    PaddedShortcut,
    SqueezeAndExcite,
    SqueezeAndExciteIdentity,
    LinearBlock,
    StandardizedShortcut,
    Difference,
    OtherDifference,
    DifferenceByName,
    DifferenceByMint,
    DifferenceByPrimitive,
    DifferenceByMethod,
    DifferenceInPlace,
]
"""Of each the norms of ``a`` and ``b`` are inner ones."""


class InceptionResNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = conv_norm(8, 4, 1), stage(8, 4, 1), nn.Conv2d(8, 8, 1)

    def construct(self, x):
        return ops.relu(x + 0.2 * self.last(ops.concat((self.a(x), self.b(x)), 1)))


class BlocksInAPyramid(FeaturePyramid):
    """The blocks of the backbone are residual ones; the pyramid around them is not."""

    def __init__(self) -> None:
        super().__init__()
        self.stage2, self.stage3 = Bottleneck(8, 2, 16), Bottleneck(16, 2, 32)


SOME = [
    (PreActivation, ["norms.1"]),
    (MobileNet, ["features.1.conv.1", "features.1.conv.4"]),
    (InceptionResNet, ["b.0.1"]),
    (BlocksInAPyramid, ["stage2.a.1", "stage2.b.1", "stage3.a.1", "stage3.b.1"]),
]
"""With the norms that go."""
