"""What benchmarks/cuda/kernels.py reads from the output of ptxas and nvdisasm, and what it calls worse."""

from dataclasses import replace

import pytest
from benchmarks.cuda.kernels import Kernel, codes, compare, fewest, names_of, resources, ways_of

FILE = "46_GLOBAL__N__a14286bb_13_accumulate_cu_5bba7600"
SYMBOL = f"_ZN9boost_ext4cuda{FILE}17accumulate_blocksILb0EEEvNS0_5TableILi2ELi764EEEf"
LOG = f"""ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{SYMBOL}' for 'sm_90'
ptxas info    : Function properties for {SYMBOL}
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 48 registers, used 0 barriers, 8 bytes cumulative stack size, 9280 bytes smem
ptxas info    : Compiling entry function 'other' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers
"""
# A kernel of two ways: 32 bytes by one access after the other, or elements one by one; then a loop.
CODE = """
.text.kernel:
        .type           kernel,@function
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA `(.L_x_0) ;
        /*0020*/                   LDG.E.128 R28, desc[UR14][R38.64] ;
        /*0030*/               @P1 LDG.E.128.CONSTANT R32, desc[UR14][R38.64+0x10] ;
        /*0040*/                   BRA `(.L_x_1) ;
.L_x_0:
        /*0050*/                   LDG.E R28, desc[UR14][R38.64] ;
        /*0060*/                   IADD3 R3, R3, 0x1, RZ ;
        /*0070*/                   LDG.E.64 R30, desc[UR14][R38.64] ;
.L_x_1:
        /*0080*/                   BRA.DIV UR5, `(.L_x_3) ;
.L_x_2:
        /*0090*/                   STG.E.64 desc[UR14][R38.64], R24 ;
        /*00a0*/                   LDS.128 R4, [R3] ;
        /*00b0*/              @!P2 BRA !P3, `(.L_x_2) ;
        /*00c0*/               @P4 EXIT ;
        /*00d0*/                   IADD3 R3, R3, 0x1, RZ ;
        /*00e0*/                   EXIT ;
.L_x_3:
        /*00f0*/                   BRA `(.L_x_3) ;
	.section	.text.other
"""


def test_resources_of_a_kernel():
    assert resources(LOG) == {SYMBOL: (48, 28, 9280), "other": (8, 0, 0)}


def test_names():
    other = "_ZN9boost_ext4cuda17multiply_in_orderIdEEvPKT_S4_lPd"
    of_an_enum = "_ZN9boost_ext4cuda12_GLOBAL__N_116centralize_teamsILNS0_12_GLOBAL__N_14FormE2EEEvNS1_8MatricesE"
    assert names_of([SYMBOL, other, of_an_enum]) == {
        SYMBOL: "accumulate_blocks<false>",
        other: "multiply_in_order<double>",
        of_an_enum: "centralize_teams<2>",
    }


def test_the_fewest_instructions_for_each_number_of_bytes():
    ((symbol, code, labels),) = codes(CODE)
    assert symbol == "kernel"
    assert len(code) == 16
    # To the first EXIT. The way of elements moves 8 bytes by a wide access, and 8 more in the loop.
    assert fewest(code, labels, 0, len(code)) == {40: 10, 16: 10}
    assert ways_of(code, labels) == (("kernel", 40, 10), ("loop", 8, 3))


KERNEL = Kernel(
    "accumulate", "accumulate_blocks<false>", 0, 48, 0, 9280, 3608, (("kernel", 192, 216), ("loop", 16, 20))
)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"registers": 40, "ways": (("kernel", 192, 237), ("loop", 16, 22))}, None),
        ({"ways": (("kernel", 192, 238), ("loop", 16, 20))}, "kernel of 192 bytes: 216 instructions, now 238"),
        ({"ways": (("kernel", 192, 216),)}, "has other ways"),
        ({"spilled": 4}, "spills 0 bytes, now 4"),
        ({"registers": 49}, "48 registers, now 49: 36 warps fit, not 42"),
        ({"registers": 48, "instructions": 9999}, None),
    ],
)
def test_what_is_worse(changed, complaint):
    key = "accumulate accumulate_blocks<false> 0: "
    assert compare([KERNEL], [replace(KERNEL, **changed)]) == ([key + complaint] if complaint else [])


def test_a_kernel_in_one_table_alone():
    key = "accumulate accumulate_blocks<false> 0: not in the"
    assert compare([KERNEL], []) == [f"{key} code"]
    assert compare([], [KERNEL]) == [f"{key} table"]
