/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Marks the measured part of a program for an emulator that counts the
 * instructions executed between cow_marker_start() and cow_marker_stop().
 * Parts may follow each other, they add up, but they do not nest.
 *
 * Each marker is one instruction: a multi-byte NOP that every x86_64 CPU has
 * (0F 1F /0), with a displacement that no compiler emits. It accesses no memory
 * and changes nothing, under an emulator or on hardware. Other architectures
 * have no marker; there these only keep the compiler from moving memory accesses
 * across.
 */
#ifndef COW_MARKER_H
#define COW_MARKER_H

/* The displacements, "COW" and a number; an emulator's plugin looks for them. */
#define COW_MARKER_START	0x434f5701
#define COW_MARKER_STOP		0x434f5702

/* nopl MARK(%rax,%rax,1), in bytes: an assembler may not choose the encoding. */
#ifdef __x86_64__
#define COW_MARKER_NOP		".byte 0x0f, 0x1f, 0x84, 0x00\n\t.long %c0"
#else
#define COW_MARKER_NOP		""
#endif

static inline void cow_marker_start(void)
{
	asm volatile(COW_MARKER_NOP : : "i" (COW_MARKER_START) : "memory");
}

static inline void cow_marker_stop(void)
{
	asm volatile(COW_MARKER_NOP : : "i" (COW_MARKER_STOP) : "memory");
}

#endif /* COW_MARKER_H */
