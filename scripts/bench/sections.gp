# SPDX-License-Identifier: GPL-2.0
#
# Panels side by side, each with a horizontal bar for each section. Set by
# sections.py with -e: data (a block for each panel; columns: line, mean, its
# text), out, caption, panels (their number), and for word(): titles, longest
# (the longest bar) and steps (of the axis) of the panels, labels of the bars.

sections = words(labels)
left = 230
width = panels > 1 ? 270 : 520
height = 112 + 22 * sections
total = left + panels * (width + 25)

# As a share of the picture, to four decimals
ratio(a, b) = real(sprintf('%.4f', real(a) / b))
start(i) = left + (i - 1) * (width + 25)

set terminal svg size total,height font 'sans,12' background '#ffffff'
set output out
unset key
set style fill solid 1.0 noborder
set border 1 lc rgb '#808080'
set tics nomirror textcolor rgb '#404040'
set ytics scale 0
set xtics format '%.0s%c' out
set grid xtics lc rgb '#e0e0e0' lt 1
set yrange [sections + 0.5:0.5]
set tmargin at screen ratio(height - 68, height)
set bmargin at screen ratio(40, height)
set multiplot
set label 1 caption at screen 0.5,ratio(height - 16, height) center font ',15'
set ytics ('' 1)
do for [i=1:sections] {
	set ytics add (word(labels, i) i)
}
do for [i=1:panels] {
	set lmargin at screen ratio(start(i), total)
	set rmargin at screen ratio(start(i) + width, total)
	set title word(titles, i) offset 0,-0.5
	set xrange [0:real(word(longest, i)) * 1.55]
	set xtics real(word(steps, i))
	plot data index i-1 using (0):1:(0):2:($1-0.36):($1+0.36) with boxxyerror lc rgb '#3b6ea8', \
		'' index i-1 using 2:1:3 with labels left offset 0.4,0 font ',10' textcolor rgb '#404040'
	unset label 1
	unset ytics
}
unset multiplot
