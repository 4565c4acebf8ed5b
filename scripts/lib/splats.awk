# SPDX-License-Identifier: GPL-2.0
#
# Prints each line of a console by which the kernel complains, with its number.
# Patterns are anchored behind the time stamp: a test may well have "BUG" in its
# name. Tests: fixtures/consoles.

{
	sub(/\r$/, "")
	line = $0
	sub(/^<[0-9]+>/, "", line)
	sub(/^\[ *[0-9]+\.[0-9]+\] ?/, "", line)
	sub(/^\[ *[TC][0-9]+\] ?/, "", line)
	sub(/^(watchdog|rcu|NMI watchdog|kasan|mm|x86\/mm): /, "", line)
}

line ~ /^WARNING: / ||
line ~ /^BUG: / ||
line ~ /^BUG [^ ]+ \(.*\): / ||
line ~ /^\[ BUG: / ||
line ~ /^kernel BUG at / ||
line ~ /^-+\[ cut here \]-+/ ||
line ~ /^Oops[: ]/ ||
line ~ /^Internal error: / ||
line ~ /^Oops\[/ ||
line ~ /^general protection fault[,:]/ ||
line ~ /^(divide error|invalid opcode|stack segment|double fault|int3|bounds|traps): [0-9a-f]* *\[?#?/ && line ~ /(SMP|PREEMPT|\[#[0-9]+\])/ ||
line ~ /^Unable to handle kernel / ||
line ~ /^unable to handle (page fault|kernel)/ ||
line ~ /^UBSAN: / ||
line ~ /^(KASAN|KCSAN|KMSAN): / ||
line ~ /^INFO: task .* blocked for more than / ||
line ~ /^INFO: rcu[_a-z]* .*detected.* stall/ ||
line ~ /^INFO: rcu[_a-z]* self-detected/ ||
line ~ /^INFO: trying to register non-static key/ ||
line ~ /^INFO: (lockdep|possible|suspicious|inconsistent|HARDIRQ|SOFTIRQ)/ ||
line ~ /^(Watchdog detected hard|hard LOCKUP|BUG: soft lockup)/ ||
line ~ /^[a-z_]+ kthread (starved|timer wakeup)/ ||
line ~ /^DEBUG_LOCKS_WARN_ON/ ||
line ~ /^turning off the locking correctness validator/ ||
line ~ /^list_(add|del) corruption/ ||
line ~ /^Bad (page state|page map|rss-counter)/ ||
line ~ /^(swap_info_get|swap_dup|get_swap_device|_swap_info_get|swap_free): (Bad|Unused) swap/ ||
line ~ /^page dumped because: / ||
line ~ /^refcount_t: / ||
line ~ /^kmemleak: [0-9]+ new suspected/ ||
line ~ /^Kernel panic - not syncing/ ||
line ~ /^Kernel (mode fault|tried to access user memory)/ ||
line ~ /^Kernel stack (overflow|is corrupted)/ {
	print NR ": " $0
}
