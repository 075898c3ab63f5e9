# SPDX-License-Identifier: Apache-2.0
"""The index of the largest entry of each row, in one pass over HBM."""
