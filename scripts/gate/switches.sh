# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# What is switched on in the submission's kernel: what --set, --config and --append name,
# and what its own mails name. Whoever runs the gate may name anything; a mail only
# sysctls, sysfs files and options that its patches add.

# Lines of WHAT TAB BY, for the reports
G_SWITCHED=

# take_switches: adds what the mails name to SET and SET_CONFIG, in front of what the
# command line names, which therefore decides
take_switches()
{
	local line
	G_SWITCHED=
	[ -z "$G_REFUSED" ] || return 0
	while IFS= read -r line; do
		[ -z "$line" ] || need_known_key "--set $line" "${line%%=*}"
	done <<< "$SET"
	while IFS= read -r line; do
		[ -z "$line" ] || need_known_symbol "--config $line" "${line%%=*}"
	done <<< "$SET_CONFIG"
	take_mail_switches
	switched "$SET" "" --set
	switched "$SET_CONFIG" CONFIG_ --config
	switched "$APPEND_ON" "boot argument " --append
	SET=$MAIL_SET$SET
	SET_CONFIG=$MAIL_CONFIG$SET_CONFIG
}

# switched LINES PREFIX BY
switched()
{
	local line
	while IFS= read -r line; do
		[ -z "$line" ] || G_SWITCHED+="$2$line"$'\t'"$3"$'\n'
	done <<< "$1"
}

#
# What a kernel has to have, as far as its source tells before it is built
#

# need_known_symbol WHO SYMBOL
need_known_symbol()
{
	in_tree -qE "^[[:space:]]*(menu)?config[[:space:]]+$2[[:space:]]*$" -- '*Kconfig*' ||
		die "$1: the submission's kernel has no option $2"
}

# need_known_key WHO KEY: a sysctl or a file. All sysctls below vm, kernel and fs are named
# in a table; macros make names of others.
need_known_key()
{
	local key leaf
	key=$(as_sysctl "$2")
	leaf=${key##*[./]}
	case "$key" in
	vm.*|kernel.*|fs.*)
		in_tree -qE "$(procname "$leaf")" -- '*.c' || die "$1: the submission's kernel has no sysctl '$key'" ;;
	*)
		in_tree -qwF -e "$leaf" -- '*.[ch]' || die "$1: nothing in the submission's kernel is called '$leaf'" ;;
	esac
}

# as_sysctl KEY: /proc/sys/vm/x as vm.x
as_sysctl()
{
	local key=$1
	[[ "$key" != /proc/sys/* ]] || { key=${key#/proc/sys/}; key=${key//\//.}; }
	echo "$key"
}

procname()
{
	echo "procname[[:space:]]*=[[:space:]]*\"$1\""
}

#
# Lines of mails, in their headers or texts: 'Gate-set: KEY=VALUE', 'Gate-config: SYMBOL=V'
#

# take_mail_switches: sets MAIL_SET and MAIL_CONFIG
take_mail_switches()
{
	local who mail line
	MAIL_SET=
	MAIL_CONFIG=
	kernel_lines > "$SCRATCH/added.lines"
	while IFS=$'\t' read -r who mail; do
		while IFS= read -r line; do
			take_mail_switch "$who" "$line"
		done < <(switch_lines "$mail")
	done < <(mails_by_name)
}

# mails_by_name: WHO TAB FILE
mails_by_name()
{
	local mail
	find "$SCRATCH/covers" -type f 2> /dev/null | sort | sed 's/^/cover letter\t/'
	for mail in "$G_MAILS"/*; do
		printf 'patch %d\t%s\n' "$((10#${mail##*/}))" "$mail"
	done
}

# switch_lines MAIL: those above its diff, without what quotes them
switch_lines()
{
	sed -E '/^(diff --git |--- [^ ])/,$d' "$1" | tr -d '\r' | grep_any -iE '^Gate-[a-z-]+:' | sed -E 's/[[:space:]]+$//'
}

# take_mail_switch WHO LINE
take_mail_switch()
{
	local what=${2#*:} field=${2%%:*}
	what=${what#"${what%%[![:space:]]*}"}
	case "${field,,}" in
	gate-set)
		need_set "$1: Gate-set" "$what"
		adds_key "${what%%=*}" || refuse_switch "$1" "$2"
		MAIL_SET+=$what$'\n'
		switched "$what" "" "$1" ;;
	gate-config)
		need_config "$1: Gate-config" "$what"
		what=${what#CONFIG_}
		new_symbols "$G_HEAD" | grep "^${what%%=*} " > /dev/null || refuse_switch "$1" "$2"
		[ "${what#*=}" != n ] || refuse_switch "$1" "$2"
		MAIL_CONFIG+=$what$'\n'
		switched "$what" CONFIG_ "$1" ;;
	*)
		refuse_switch "$1" "$2" ;;
	esac
}

# refuse_switch WHO LINE
refuse_switch()
{
	die "$1 must not ask for '$2'" \
		"A mail may name what its patches add, and the base has not: a sysctl or a file in sysfs" \
		"(Gate-set: KEY=VALUE), an option (Gate-config: SYMBOL=VALUE, not n); never kernel arguments." \
		"Whoever runs the gate can name all others: --set, --config, --append."
}

# kernel_lines: what the series adds to the kernel's code
kernel_lines()
{
	added_lines '*.c' '*.h' ':!tools' ':!samples' ':!scripts' ':!Documentation'
}

# adds_key KEY: whether the patches add that sysctl, or that file of sysfs
adds_key()
{
	local key
	key=$(as_sysctl "$1")
	case "$key" in
	*..*|*//*) return 1 ;;
	/sys/kernel/debug/*|/sys/kernel/tracing/*|/sys/fs/cgroup/*) return 1 ;;
	/sys/*) adds_sysfs_file "$key" ;;
	/*) return 1 ;;
	*) adds "$(procname "$(literally "${key##*.}")")" ;;
	esac
}

# literally NAME: as a regular expression
literally()
{
	echo "${1//./[.]}"
}

# adds REGEX: whether the patches add a match, and the base has none
adds()
{
	grep -qE -- "$1" "$SCRATCH/added.lines" && ! in_base "$1"
}

in_base()
{
	kgit -C "$K_TREE" grep -qE -e "$1" "$G_BASE" -- '*.[ch]'
}

# adds_sysfs_file PATH: the patches define an attribute or parameter of that name; and
# either the name is new, or a folder of the path is: 'enabled' is in many folders
adds_sysfs_file()
{
	local name=${1##*/} regex folder folders
	regex="(ATTR[A-Z0-9_]*|module_param[a-z_]*|core_param[a-z_]*)\([[:space:]]*\"?$(literally "$name")\>"
	regex+="|\.name[[:space:]]*=[[:space:]]*\"$(literally "$name")\""
	grep -qE -- "$regex" "$SCRATCH/added.lines" || return 1
	in_base "$regex" || return 0
	IFS=/ read -ra folders <<< "${1%/*}"
	for folder in "${folders[@]:2}"; do
		! adds "\"$(literally "$folder")\"" || return 0
	done
	return 1
}

#
# Configuration
#

# set_fragment ARCH: what --config and mails name, the last of each symbol. What x86_64
# cannot have is an error; an option may be for x86_64 only.
set_fragment()
{
	printf '%s' "$SET_CONFIG" | awk -F = -v arch="$1" '
		{ line[$1] = $0 }
		END {
			for (name in line)
				print (line[name] == name "=n" ? "# CONFIG_" name " is not set" : "CONFIG_" line[name]) \
					(arch == "x86_64" ? "" : "\t# optional")
		}' | sort
}
