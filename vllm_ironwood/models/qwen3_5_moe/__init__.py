# SPDX-License-Identifier: Apache-2.0
"""Qwen 3.5 MoE: GDN and attention layers, each followed by a mixture of experts."""
