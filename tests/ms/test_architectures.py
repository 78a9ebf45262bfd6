"""Which batch norms LessBN takes from well-known architectures, and which sums it says are no residual blocks."""

import architectures
import pytest
from mindspore import nn
from tests.ms.test_residual import inner, notes

from boost_ext.ms.surgery.less_bn import remove_batch_norms

NO_BLOCK = "the network: a sum is no residual block"


@pytest.mark.parametrize("network", architectures.KEPT)
def test_without_a_residual_block_all_norms_stay(network: type[nn.Cell]) -> None:
    assert inner(network()) == []


@pytest.mark.parametrize("network", architectures.BLOCKS)
def test_a_block(network: type[nn.Cell]) -> None:
    assert inner(network()) == ["a.1", "b.1"]
    assert notes(network()) == ""


@pytest.mark.parametrize(("network", "expected"), architectures.SOME)
def test_only_what_lies_in_a_block(network: type[nn.Cell], expected: list[str]) -> None:
    assert inner(network()) == expected


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        ("FeaturePyramid", "a branch makes the feature map larger (interpolate)"),
        ("LinkNet", "a branch makes the feature map larger (Conv2dTranspose)"),
        ("ResizingLinkNet", "a branch makes the feature map larger (Upsample)"),
        ("ShufflingLinkNet", "a branch has a stride, and what it is added to has none"),
        ("WideAndDeep", "a branch beside a projection does not end in a batch norm"),
        ("WideByTable", "a branch beside a projection does not end in a batch norm"),
        ("Pyramids", "its shortcut is a layer that changes neither channels nor stride"),
        ("ReshapingUNet", "a branch has a stride, and what it is added to has none"),
        ("AddingUNet", "a branch makes the feature map larger (Conv2dTranspose)"),
    ],
)
def test_a_note_says_why_the_norms_stay(network: str, reason: str) -> None:
    assert f"{NO_BLOCK}: {reason}" in notes(getattr(architectures, network)())


def test_the_report_has_the_note() -> None:
    report = remove_batch_norms(architectures.WideAndDeep())
    assert report.removed == ()
    assert len(report.kept) == 3
    assert f"{NO_BLOCK}: a branch beside a projection does not end in a batch norm" in report.notes
    assert "no residual branch found: nothing to remove" in report.notes


@pytest.mark.parametrize("network", [architectures.UNet, architectures.DenseBlock, architectures.Inception])
def test_without_a_sum_there_is_nothing_to_say(network: type[nn.Cell]) -> None:
    assert notes(network()) == ""
