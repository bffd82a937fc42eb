/* Network calls of programs; WORD selects the kind of call: calls WORD PORT.
 *
 * Connects to the far end at 127.0.0.1, sends a line, and prints the answer, which is the owner of
 * the connection. If a call is refused, prints its error number instead. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static struct sockaddr_in to;
static char *self, *port;

static int refused(void)
{
	printf("refused %d\n", errno);
	return 0;
}

static int tcp(int flags)
{
	return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
}

/* Sends a line (unless one was sent), and prints the answer. */
static int talk(int fd, int said)
{
	char line[256];
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	if (!said && write(fd, "hello\n", 6) != 6)
		return refused();
	ssize_t n = read(fd, line, sizeof line - 1);
	if (n <= 0)
		return refused();
	line[n] = 0;
	fputs(line, stdout);
	return 0;
}

static int blocking(void)
{
	int fd = tcp(0);
	return connect(fd, (void *)&to, sizeof to) ? refused() : talk(fd, 0);
}

/* Waits until fd is writable, and checks the result of its connect. */
static int await(int epoll, int fd)
{
	struct epoll_event event;
	int error = 0;
	socklen_t size = sizeof error;
	if (epoll_wait(epoll, &event, 1, 5000) != 1) {
		errno = ETIMEDOUT;
		return refused();
	}
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
	if ((errno = error))
		return refused();
	return talk(fd, 0);
}

static int epoll_after(void)
{
	int fd = tcp(SOCK_NONBLOCK), epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLOUT };
	if (connect(fd, (void *)&to, sizeof to) && errno != EINPROGRESS)
		return refused();
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	return await(epoll, fd);
}

static int epoll_before(void)
{
	int fd = tcp(SOCK_NONBLOCK), epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLET };
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	/* A socket that is not connected reports EPOLLHUP; this discards that event. */
	epoll_wait(epoll, &event, 1, 0);
	if (connect(fd, (void *)&to, sizeof to) && errno != EINPROGRESS)
		return refused();
	return await(epoll, fd);
}

static int by_syscall(void)
{
	int fd = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
	return syscall(SYS_connect, fd, &to, sizeof to) ? refused() : talk(fd, 0);
}

static int inline_asm(void)
{
	int fd = tcp(0);
	long result;
#if defined __x86_64__
	register long r10 __asm__("r10") = 0;
	__asm__ volatile("syscall" : "=a"(result) : "a"(SYS_connect), "D"((long)fd), "S"(&to),
		"d"(sizeof to), "r"(r10) : "rcx", "r11", "memory");
#else
	register long x8 __asm__("x8") = SYS_connect, x0 __asm__("x0") = fd;
	register long x1 __asm__("x1") = (long)&to, x2 __asm__("x2") = sizeof to;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
	result = x0;
#endif
	errno = -result;
	return result ? refused() : talk(fd, 0);
}

static int uring(void)
{
	struct io_uring_params p = { 0 };
	int fd = tcp(0), ring = syscall(SYS_io_uring_setup, 4, &p);
	if (ring < 0)
		return refused();
	size_t size = p.sq_off.array + p.sq_entries * sizeof(unsigned);
	char *sq = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	size = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	char *cq = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
	size = p.sq_entries * sizeof(struct io_uring_sqe);
	struct io_uring_sqe *sqe =
		mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	*sqe = (struct io_uring_sqe){ .opcode = IORING_OP_CONNECT, .fd = fd,
		.addr = (unsigned long)&to, .off = sizeof to };
	((unsigned *)(sq + p.sq_off.array))[0] = 0;
	__atomic_store_n((unsigned *)(sq + p.sq_off.tail), 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) < 0)
		return refused();
	errno = -((struct io_uring_cqe *)(cq + p.cq_off.cqes))->res;
	return errno ? refused() : talk(fd, 0);
}

/* Waits for the child, which writes to the standard output of this program. */
static int child(int pid)
{
	int status;
	return pid < 0 ? refused() : waitpid(pid, &status, 0) < 0 || status;
}

static int spawned(void)
{
	char *argv[] = { self, "blocking", port, 0 };
	int pid, error = posix_spawn(&pid, self, 0, 0, argv, environ);
	errno = error;
	return error ? refused() : child(pid);
}

static int vforked(void)
{
	char *argv[] = { self, "blocking", port, 0 };
	int pid = vfork();
	if (!pid) {
		execv(self, argv);
		_exit(9);
	}
	return child(pid);
}

static int forked(void)
{
	int pid = fork();
	if (!pid) {
		blocking();
		fflush(stdout);
		_exit(0);
	}
	return child(pid);
}

static int bare(void)
{
	char *argv[] = { self, "blocking", port, 0 }, *empty[] = { 0 };
	int pid = fork();
	if (!pid) {
		execve(self, argv, empty);
		_exit(9);
	}
	return child(pid);
}

/* A child opens and connects a socket, and passes it to its parent, which uses it. */
static int passed(void)
{
	int pair[2], fd, status;
	char byte = 0, space[CMSG_SPACE(sizeof fd)] = { 0 };
	struct iovec piece = { &byte, 1 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = space,
		.msg_controllen = sizeof space };
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	int pid = fork();
	if (!pid) {
		struct cmsghdr *head = CMSG_FIRSTHDR(&message);
		fd = tcp(0);
		if (connect(fd, (void *)&to, sizeof to))
			_exit(errno);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(head), &fd, sizeof fd);
		sendmsg(pair[1], &message, 0);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	errno = WEXITSTATUS(status);
	if (status || recvmsg(pair[0], &message, 0) != 1)
		return refused();
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return talk(fd, 0);
}

static int names(void)
{
	struct sockaddr_in peer, own;
	socklen_t size = sizeof peer;
	int fd = tcp(0);
	if (connect(fd, (void *)&to, sizeof to))
		return refused();
	getpeername(fd, (void *)&peer, &size);
	if (memcmp(&peer, &to, 8))
		return puts("another peer"), 0;
	getsockname(fd, (void *)&own, &size);
	char line[32], answer[256];
	/* The far end answers with the port that it has seen. */
	snprintf(line, sizeof line, "port\n");
	write(fd, line, strlen(line));
	ssize_t n = read(fd, answer, sizeof answer - 1);
	answer[n < 0 ? 0 : n] = 0;
	char *seen = strchr(answer, ' ');
	if (!seen || atoi(seen) != ntohs(own.sin_port))
		return printf("another name: %d, seen %s", ntohs(own.sin_port), answer), 0;
	*seen = 0;
	return puts(answer), 0;
}

static int fast_open(void)
{
	int fd = tcp(0);
	ssize_t sent = sendto(fd, "hello\n", 6, MSG_FASTOPEN, (void *)&to, sizeof to);
	return sent == 6 ? talk(fd, 1) : refused();
}

static int udp(int many)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct iovec piece = { "hello\n", 6 };
	struct mmsghdr message = { .msg_hdr = { &to, sizeof to, &piece, 1, 0, 0, 0 } };
	struct pollfd ready = { fd, POLLIN, 0 };
	if (fd < 0)
		return refused();
	if (many ? sendmmsg(fd, &message, 1, 0) != 1
		 : sendto(fd, "hello\n", 6, 0, (void *)&to, sizeof to) != 6)
		return refused();
	if (poll(&ready, 1, 5000) != 1)
		return puts("no answer"), 0;
	return talk(fd, 1);
}

/* Connects and closes repeatedly, and prints the mean time in nanoseconds. */
static int cost(void)
{
	struct timespec from, until;
	int times = 2000;
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (int n = 0; n < times; n++) {
		int fd = tcp(0);
		struct linger reset = { 1, 0 };
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
		if (connect(fd, (void *)&to, sizeof to))
			return refused();
		close(fd);
	}
	clock_gettime(CLOCK_MONOTONIC, &until);
	double ns = (until.tv_sec - from.tv_sec) * 1e9 + (until.tv_nsec - from.tv_nsec);
	return printf("%.0f\n", ns / times), 0;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *word;
		int (*shape)(void);
	} shapes[] = {
		{ "blocking", blocking }, { "epoll-after", epoll_after },
		{ "epoll-before", epoll_before }, { "syscall", by_syscall }, { "asm", inline_asm },
		{ "io_uring", uring }, { "posix_spawn", spawned }, { "vfork", vforked },
		{ "fork", forked }, { "bare", bare }, { "passed", passed }, { "names", names },
		{ "fast-open", fast_open }, { "cost", cost },
	};
	if (argc != 3)
		return 2;
	self = argv[0];
	port = argv[2];
	to.sin_family = AF_INET;
	to.sin_port = htons(atoi(port));
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (!strcmp(argv[1], "udp") || !strcmp(argv[1], "udp-many"))
		return udp(argv[1][3]);
	for (unsigned n = 0; n < sizeof shapes / sizeof *shapes; n++)
		if (!strcmp(argv[1], shapes[n].word))
			return shapes[n].shape();
	return 2;
}
