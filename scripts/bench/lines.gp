# SPDX-License-Identifier: GPL-2.0
#
# One plot of several lines. Set by figures.py with -e: data (blocks, each
# with its title as the first line), colours (a word for each block), solid (how
# many are drawn solid; those after them are dashed), out, xtext, ytext, style
# (linespoints, lines or fsteps), kind (window, cdf or time: the axes), xmax.

set terminal svg size 560,350 dynamic enhanced font 'sans-serif,14'
set output out
set encoding utf8
set xlabel xtext offset 0,0.3
set ylabel ytext offset 0.5,0
set format y '%.0f'
set border 3 linewidth 1
set tics nomirror out scale 0.6
set grid ytics linewidth 0.5 linetype 1 linecolor rgb '#a0a0a0'
set key tmargin left Left reverse horizontal samplen 1.6 width 3 font ',12'
set yrange [0:*]
set offsets 0, 0, graph 0.05, 0
if (kind eq 'window') {
	set xrange [0:xmax * 1.02]
	set xtics (0, 1, 2, 4, 8, 15)
	if (xmax > 15) {
		set xtics (0, 1, 3, 7, 15, 31)
	}
}
if (kind eq 'cdf') {
	set logscale x
	set format x '%.0s%c'
	set yrange [0:100]
	set offsets 0, 0, 0, 0
}
if (kind eq 'time') {
	set format x '%g'
	set xrange [0:*]
}

blocks = words(colours)
dash(i) = i < solid ? 1 : 2

plot for [i=0:blocks-1] data index i using 1:2 with @style \
	linecolor rgb word(colours, i+1) linewidth 2 dashtype dash(i) \
	title columnheader(1)
