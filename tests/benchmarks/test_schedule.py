# SPDX-License-Identifier: Apache-2.0
"""A schedule dump is read as what it says: loops with their trips, arms, fills and spills."""

from benchmarks.static_cost import schedule
from benchmarks.static_cost.sampler import BLOCK, VOCAB, argmax_cycles

PACKED = """\
= control target key start
     0   : {  %s1 = smov 0  }
   0x1   : > {  %s2 = sphi %s1  }
   0x2   : > {  %4 = sbr.rel (%p3) target bundleno = 6 (0x6), region = 1 }
   0x3   : > {  %v5 = vld [vmem:[#allocation2]]
    %v6 = vadd.f32 %v5, %v5  }
   0x4   : > {  %v7 = vmax.f32 %v6, %v5  }
   0x5   : > {  %v8 = vst [vmem:[#allocation3]] %v7  }
   0x6   : > {  %s9 = sadd.s32 1, %s2  }
   0x7   : > {  %p10 = scmp.ge.s32.totalorder %s9, 21 /* loop exit test */  }
   0x8   : > { %11 = sbr.rel (!%p10) target bundleno = 1 (0x1), region = 2 }
   0x9   :  {  %12 = shalt  }
"""
UTILISATION = """\
MATMUL, VALU, VLOAD, VLOAD:FILL, VSTORE:SPILL
2 4 3 3 2
0 1 1 2 0
0 1 1 1 1
"""


def dump(directory, number, name, packed):
    stem = f"{number}-{name}-00"
    (directory / f"{stem}-packed-bundles-post-ra.txt").write_text(packed)
    utilisation = directory / f"{stem}-pre-delay_hlo-static-per-bundle-utilization.txt"
    utilisation.write_text(UTILISATION)


def test_loops_arms_and_register_traffic_are_found(tmp_path):
    dump(tmp_path, 17, "row_argmax.1", PACKED)
    [kernel] = schedule.read(tmp_path)
    assert kernel.name == "row_argmax.1"
    assert kernel.bundles == 10
    assert kernel.loops == (schedule.Region(1, 8, trips=21),)
    assert kernel.arms == (schedule.Region(3, 5),)
    assert (kernel.fills, kernel.spills) == (3, 1)


def test_kernels_come_in_the_order_of_their_compilation_and_others_are_left_out(tmp_path):
    for number, name in ((2, "b"), (1, "a"), (3, "<late c")):
        dump(tmp_path, number, name, PACKED)
    (tmp_path / "readme.txt").write_text("no schedule")
    assert [kernel.name for kernel in schedule.read(tmp_path)] == ["a", "b"]


def test_a_bound_that_is_no_constant_is_unknown(tmp_path):
    dump(tmp_path, 1, "a", PACKED.replace(", 21 /*", ", %s77 /*"))
    assert schedule.read(tmp_path)[0].loops[0].trips is None


def test_exclusive_arms_are_counted_only_when_they_are_taken():
    kernel = schedule.Kernel(
        name="row_argmax",
        bundles=1_000,
        loops=(schedule.Region(10, 909, trips=61),),
        arms=(
            schedule.Region(20, 899),  # all of a step's work, which holds the two
            schedule.Region(30, 229),  # every block but the last
            schedule.Region(300, 799),  # the last
        ),
        fills=0,
        spills=0,
    )
    steps = -(-VOCAB // BLOCK)
    assert argmax_cycles(kernel) == 100 + (steps - 1) * (900 - 500) + (900 - 200)
