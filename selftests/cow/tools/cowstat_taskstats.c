// SPDX-License-Identifier: GPL-2.0
/* Delay accounting by netlink (taskstats): what a stock kernel has of COW faults */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
/* First: what tools/include has of linux/types.h leaves these types out. */
#include <linux/posix_types.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <linux/taskstats.h>
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cow_stats.h"
#include "cowstat_taskstats.h"

struct nl_message {
	struct nlmsghdr nl;
	struct genlmsghdr genl;
	char attrs[4096];
};

static int nl_open(void)
{
	struct sockaddr_nl addr = { .nl_family = AF_NETLINK };
	int fd;

	fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC);
	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&addr, sizeof(addr))) {
		int err = -errno;

		close(fd);
		return err;
	}
	return fd;
}

/* One attribute there, one message back; 0 or a negative errno */
static int nl_ask(int fd, int family, int cmd, int type, const void *data,
		  size_t len, struct nl_message *m)
{
	struct nlattr *attr = (struct nlattr *)m->attrs;
	struct nlmsgerr *err;
	ssize_t n;

	memset(m, 0, sizeof(*m));
	attr->nla_type = type;
	attr->nla_len = NLA_HDRLEN + len;
	memcpy(m->attrs + NLA_HDRLEN, data, len);
	m->nl.nlmsg_len = NLMSG_LENGTH(GENL_HDRLEN) + NLA_ALIGN(attr->nla_len);
	m->nl.nlmsg_type = family;
	m->nl.nlmsg_flags = NLM_F_REQUEST;
	m->genl.cmd = cmd;
	m->genl.version = 1;
	if (send(fd, m, m->nl.nlmsg_len, 0) < 0)
		return -errno;
	n = recv(fd, m, sizeof(*m), 0);
	if (n < 0)
		return -errno;
	if (!NLMSG_OK(&m->nl, n))
		return -EPROTO;
	if (m->nl.nlmsg_type == NLMSG_ERROR) {
		err = NLMSG_DATA(&m->nl);
		return err->error ?: -EPROTO;
	}
	return 0;
}

/* The attribute of this type among len bytes of them, or NULL */
static void *nl_find(char *attrs, int len, int type, size_t *size)
{
	while (len >= (int)NLA_HDRLEN) {
		struct nlattr *attr = (struct nlattr *)attrs;

		if (attr->nla_len < NLA_HDRLEN || attr->nla_len > len)
			break;
		if ((attr->nla_type & NLA_TYPE_MASK) == type) {
			*size = attr->nla_len - NLA_HDRLEN;
			return attrs + NLA_HDRLEN;
		}
		attrs += NLA_ALIGN(attr->nla_len);
		len -= NLA_ALIGN(attr->nla_len);
	}
	return NULL;
}

static int attrs_len(const struct nl_message *m)
{
	return m->nl.nlmsg_len - NLMSG_LENGTH(GENL_HDRLEN);
}

static int taskstats_family(int fd)
{
	static struct nl_message m;
	size_t size;
	__u16 *id;
	int ret;

	ret = nl_ask(fd, GENL_ID_CTRL, CTRL_CMD_GETFAMILY,
		     CTRL_ATTR_FAMILY_NAME, TASKSTATS_GENL_NAME,
		     sizeof(TASKSTATS_GENL_NAME), &m);
	if (ret)
		return ret;
	id = nl_find(m.attrs, attrs_len(&m), CTRL_ATTR_FAMILY_ID, &size);
	return id && size >= sizeof(*id) ? *id : -EPROTO;
}

/* what is TASKSTATS_CMD_ATTR_PID (one thread) or _TGID (a process). */
static int taskstats_read(int fd, int family, int what, pid_t pid,
			  struct wpcopy *wp)
{
	static struct nl_message m;
	struct taskstats stats = {};
	__u32 id = pid;
	size_t size;
	char *p;
	int ret;

	ret = nl_ask(fd, family, TASKSTATS_CMD_GET, what, &id, sizeof(id), &m);
	if (ret)
		return ret;
	p = nl_find(m.attrs, attrs_len(&m),
		    what == TASKSTATS_CMD_ATTR_PID ? TASKSTATS_TYPE_AGGR_PID :
						     TASKSTATS_TYPE_AGGR_TGID,
		    &size);
	if (p)
		p = nl_find(p, size, TASKSTATS_TYPE_STATS, &size);
	if (!p)
		return -EPROTO;
	/* It grows at its end with each version. */
	memcpy(&stats, p, size < sizeof(stats) ? size : sizeof(stats));
	if (size < offsetof(struct taskstats, wpcopy_delay_total) +
		   sizeof(stats.wpcopy_delay_total))
		return -EOPNOTSUPP;
	wp->count = stats.wpcopy_count;
	wp->ns = stats.wpcopy_delay_total;
	return 0;
}

int wpcopy_read(pid_t pid, struct wpcopy *wp)
{
	static int fd = -1, family;
	struct wpcopy thread;
	char path[PATH_MAX], buf[32];
	int ret;

	snprintf(path, sizeof(path), "%s/sys/kernel/task_delayacct", cow_proc);
	ret = cow_read_file(path, buf, sizeof(buf));
	if (ret < 0)
		return -EOPNOTSUPP;
	if (buf[0] == '0')
		return -ENODATA;
	if (fd < 0) {
		fd = nl_open();
		if (fd < 0)
			return fd;
		family = taskstats_family(fd);
	}
	if (family < 0)
		return family;
	ret = taskstats_read(fd, family, TASKSTATS_CMD_ATTR_TGID, pid, wp);
	if (ret)
		return ret;
	ret = taskstats_read(fd, family, TASKSTATS_CMD_ATTR_PID, pid, &thread);
	if (!ret && thread.count > wp->count)
		*wp = thread;
	return 0;
}
