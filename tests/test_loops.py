"""The table of inner loops: what benchmarks/loops.py reads from a disassembly, and what it calls worse."""

from dataclasses import replace

import pytest
from benchmarks.loops import Loop, bodies, bytes_of, compare, functions, name_of, spills_of

SYMBOL = "_ZZN9boost_ext3cpu6avx51215sums_of_squaresERKNS_7ContextENS_7TensorsEPdENKUlNS1_5BlockEE_clES7_"
X86 = f"""
0000000000000040 <{SYMBOL}>:
      40:      \tpush\trbp
      41:      \tmov\trbp, rsp
      50:      \tmov\trax, rdi
      60:      \tvmovaps\tzmm3, zmmword ptr [rbp - 144]
      70:      \tvpmovzxwd\tzmm0, ymmword ptr [rax + 2*rcx]
      76:      \tnop
      78:      \tvaddps\tzmm0, zmm0, dword ptr [rip + 8]{{1to16}} # 0x80 <{SYMBOL}+0x40>
      80:      \tvaddps\tzmm3, zmm3, zmmword ptr [rsp + 64]
      88:      \tvmovups\tzmmword ptr [rsp + rax + 64], zmm3
      90:      \tprefetcht0\tbyte ptr [rax + 512]
      98:      \tadd\trax, 32
      a0:      \tje\t0x120 <{SYMBOL}+0xe0>
      a8:      \tcmp\trax, rdx
      b0:      \tjne\t0x70 <{SYMBOL}+0x30>
      b8:      \tcall\t0xc0 <{SYMBOL}+0x80>
      c0:      \tinc\trbx
      c8:      \tjne\t0x60 <{SYMBOL}+0x20>
      d0:      \tvmovaps\txmm0, xmmword ptr [rbp - 144]
      d8:      \tcall\t0xe0 <memcpy>
      e0:      \tjne\t0xd0 <{SYMBOL}+0x90>
      e8:      \tdec\tecx
      f0:      \tjne\t0xe8 <{SYMBOL}+0xa8>
     120:      \tret
"""
AARCH64 = """
0000000000000000 <_ZN9boost_ext3cpu8baseline7convertINS1_4HalfEfEEvPKT_PT0_l>:
       8:      \tldp\tq0, q1, [x0], #0x20
       c:      \tldr\tq2, [sp, #0x40]
      10:      \tfadd\tv0.4s, v0.4s, v2.4s
      14:      \tstr\tq0, [x1, x2]
      18:      \tb.ne\t0x8 <_ZN9boost_ext3cpu8baseline7convertINS1_4HalfEfEEvPKT_PT0_l+0x8> // b.any
      1c:      \tret
"""


def test_innermost_loops_of_vectors_without_calls():
    ((symbol, code),) = functions(X86)
    assert name_of(symbol) == "sums_of_squares"
    (body,) = bodies(code)
    assert len(body) == 9
    assert body[0].startswith("vpmovzxwd")
    assert body[-1] == "jne 0x70"
    assert sum(map(bytes_of, body)) == 32  # neither the constant, nor the stack, nor what is fetched ahead
    assert spills_of(code, body) == 1  # an array on the stack is no spill


def test_the_frame_pointer_is_a_register_like_others_unless_it_points_to_the_frame():
    framed = [(0, "mov rbp, rsp"), (4, "vmovaps zmm1, zmmword ptr [rbp - 128]")]
    assert spills_of(framed, [framed[1][1]]) == 1
    assert spills_of(framed[1:], [framed[1][1]]) == 0


def test_loops_of_aarch64():
    ((symbol, code),) = functions(AARCH64)
    assert name_of(symbol) == "convert Half"
    (body,) = bodies(code)
    assert [bytes_of(line) for line in body] == [32, 0, 0, 16, 0]
    assert spills_of(code, body) == 1


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("vmovss xmm0, dword ptr [rdi]", 4),
        ("add qword ptr [rax], rcx", 8),
        ("lea rax, [rax + 4*rcx]", 0),
        ("nop word ptr [rax + rax]", 2),  # bodies() leaves it out
        ("ldrb w1, [x0]", 1),
        ("ldurh w1, [x0, #-0x2]", 2),
        ("stp xzr, x1, [x0]", 16),
        ("st1 { v0.4h, v1.4h }, [x0]", 16),
        ("ld1 { v0.16b, v1.16b }, [x0], #32", 32),
        ("ld1r { v0.4s }, [x0]", 4),
        ("st1 { v0.h }[2], [x0]", 2),
        ("stp q0, q1, [sp, #0x20]", 0),
    ],
)
def test_bytes_of_an_instruction(line, size):
    assert bytes_of(line) == size


LOOP = Loop("avx512", "dropout", "dropout BFloat", 0, 40, 256, 1, (20.0, 20.0, 30.0))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"cycles": (21.9, 21.9, 32.9)}, None),
        ({"cycles": (20.0, 22.1, 30.0)}, "sapphirerapids: 20 cycles for 256 bytes, now 22.1 for 256"),
        ({"cycles": (40.0, 40.0, 60.0), "bytes": 512, "instructions": 80}, None),
        ({"cycles": (22.1, 20.0, 30.0), "bytes": 320}, "skylake-avx512: 20 cycles for 256 bytes, now 22.1 for 320"),
        ({"spills": 2}, "moves 1 vectors to and from the stack, now 2"),
        ({"spills": 0}, None),
    ],
)
def test_what_is_worse(changed, complaint):
    other = replace(LOOP, function="dropout", cycles=(1.0, 1.0, 1.0))
    key = "avx512 dropout dropout BFloat 0: "
    assert compare([LOOP, other], [replace(LOOP, **changed), other]) == ([key + complaint] if complaint else [])


def test_another_number_of_loops_is_a_complaint():
    assert compare([LOOP], [LOOP, replace(LOOP, number=1)]) == ["avx512 dropout dropout BFloat: 1 loops, now 2"]
    assert compare([LOOP], []) == ["avx512 dropout dropout BFloat: 1 loops, now 0"]
