/* Calls that break interposers, one per word: traps WORD PORT.
 *
 * As in calls.c, each connects to the far end at 127.0.0.1, sends a line, and prints the answer. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

static struct sockaddr_in to;

/* Connects, sends a line, and stores the answer. */
static int ask(int fd, char answer[256])
{
	ssize_t n;
	if (connect(fd, (void *)&to, sizeof to) || write(fd, "hello\n", 6) != 6 ||
	    (n = read(fd, answer, 255)) <= 0)
		return snprintf(answer, 256, "refused %d\n", errno), -1;
	answer[n] = 0;
	return 0;
}

static int tcp(void)
{
	return socket(AF_INET, SOCK_STREAM, 0);
}

/* Closes all descriptors except the first three, including inherited ones. */
static void closed(char answer[256])
{
	syscall(SYS_close_range, 3, ~0U, 0);
	ask(tcp(), answer);
}

/* Connects a socket a second time. */
static void anew(char answer[256])
{
	struct sockaddr nowhere = { .sa_family = AF_UNSPEC };
	int fd = tcp();
	if (ask(fd, answer))
		return;
	connect(fd, &nowhere, sizeof nowhere);
	ask(fd, answer);
}

/* Defers the connect until data is sent (TCP_FASTOPEN_CONNECT). */
static void put_off(char answer[256])
{
	int fd = tcp(), one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &one, sizeof one);
	ask(fd, answer);
}

static void nothing(int signal)
{
	(void)signal;
}

/* Interrupts calls continually, like runtimes that schedule their own threads by signals. */
static void interrupted(char answer[256])
{
	struct sigaction action = { .sa_handler = nothing, .sa_flags = SA_RESTART };
	struct itimerval often = { { 0, 2000 }, { 0, 2000 } };
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	for (int n = 0; n < 5; n++) {
		int fd = tcp();
		if (ask(fd, answer))
			break;
		close(fd);
	}
}

static int run(char **argv)
{
	static const struct {
		const char *word;
		void (*trap)(char *);
	} traps[] = {
		{ "closed", closed }, { "anew", anew }, { "put-off", put_off },
		{ "interrupted", interrupted }, { "before-main", closed },
	};
	char answer[256] = "";
	to.sin_family = AF_INET;
	to.sin_port = htons(atoi(argv[2]));
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	for (unsigned n = 0; n < sizeof traps / sizeof *traps; n++)
		if (!strcmp(argv[1], traps[n].word))
			traps[n].trap(answer);
	fputs(answer, stdout);
	return fflush(stdout);
}

__attribute__((constructor)) static void begin(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "before-main"))
		_exit(run(argv));
}

int main(int argc, char **argv)
{
	return argc == 3 ? run(argv) : 2;
}
