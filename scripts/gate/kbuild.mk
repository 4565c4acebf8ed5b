# SPDX-License-Identifier: GPL-2.0
#
# Prints the objects and folders that one kbuild file lists, by a configuration:
#
#	make -s -f kbuild.mk CONFIG=.config KBUILD=mm/Makefile
#
# What the kbuild file builds is not looked at: its rules are read and not run.

.PHONY: listed
listed:

include $(CONFIG)
obj-y :=
obj-m :=
lib-y :=
include $(KBUILD)

whole := $(obj-y) $(obj-m) $(lib-y)
# of what an object is linked that has several sources
parts := $(foreach o,$(filter %.o,$(whole)),$($(o:.o=-y)) $($(o:.o=-objs)) $($(o:.o=-m)))

listed:
	@printf '%s\n' $(whole) $(parts)
