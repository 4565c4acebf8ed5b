# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# Whether guests may have real-time priority.

# A guest's CPUs wait for each other's interrupts, and each time for the host's scheduler
# if its CPUs are busy. The tests of userfaultfd take 9 s alone, 120 s beside two compilers
# at nice 10, and 10 s there with real-time priority. COW_NO_REALTIME=1 does without, as an
# ordinary user must.
guests_have_realtime()
{
	[ -z "${COW_NO_REALTIME-}" ] && [ "$(nproc)" -gt 1 ] && chrt --rr 1 true 2> /dev/null
}
