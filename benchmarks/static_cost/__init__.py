# SPDX-License-Identifier: Apache-2.0
"""What a program costs on TPU7x, read off libtpu's own schedule; no TPU is used.

libtpu compiles for TPU7x on any machine and can write down the VLIW schedule of every kernel:
one bundle per cycle, stalls that the scheduler knows of included. Cycles are bundles times
trips; the estimate is the longer of cycles at 2.2 GHz and bytes at 3.69 TB/s. Not modelled:
latency and imperfect overlap of DMA, bank conflicts, links between chips.
"""
