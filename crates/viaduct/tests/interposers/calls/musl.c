/* A program linked with musl: musl WORD PORT. Connects to the far end at 127.0.0.1 and prints the
 * answer. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char line[256];
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[argc - 1])) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (connect(fd, (void *)&to, sizeof to) || write(fd, "hello\n", 6) != 6)
		return printf("refused %d\n", errno), 0;
	ssize_t n = read(fd, line, sizeof line - 1);
	line[n < 0 ? 0 : n] = 0;
	return fputs(line, stdout), 0;
}
