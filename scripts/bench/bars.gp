# SPDX-License-Identifier: GPL-2.0
#
# Groups of bars. Set by figures.py with -e: data (a table, its first line the
# names of the columns, its first column the groups), colours (a word for each
# column but the first), out, ytext.

set terminal svg size 560,350 dynamic enhanced font 'sans-serif,14'
set output out
set encoding utf8
set ylabel ytext offset 0.5,0
set border 3 linewidth 1
set tics nomirror out scale 0.6
set xtics scale 0 font ',12'
set grid ytics linewidth 0.5 linetype 1 linecolor rgb '#a0a0a0'
set key tmargin left Left reverse horizontal samplen 1 width 1 font ',12'
set yrange [0:*]
set style data histograms
set style histogram clustered gap 1
set style fill solid 0.9
set boxwidth 0.9

plot for [i=1:words(colours)] data using (column(i + 1)):xtic(1) \
	linecolor rgb word(colours, i) title columnheader(i + 1)
