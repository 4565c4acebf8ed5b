# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The tables of the published study of copy-on-write faults, on this kernel.

