/* A program that queries its handlers. It connects to the port of its first argument, sends the
 * request of its third argument to the handler named by its second, and prints the answer. With a
 * fourth argument it also prints events until the flow has migrated. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>

#include "viaduct.h"

int main(int argc, char **argv)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    char text[VIADUCT_MOST];
    int fd = socket(AF_INET, SOCK_STREAM, 0), events;
    ssize_t length;

    if (argc < 4)
        return 2;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0) {
        perror("connect");
        return 1;
    }
    if (write(fd, "hello\n", 6) != 6 || read(fd, text, sizeof(text)) <= 0)
        return 1;
    events = viaduct_watch(fd);
    printf("wrapped %d watched %d\n", viaduct_is_wrapped(), events >= 0);
    length = viaduct_control(fd, argv[2], argv[3], strlen(argv[3]), text, sizeof(text));
    printf("answer %zd\n%.*s", length, (int)(length > 0 ? length : 0), text);
    fflush(stdout);
    while (argc > 4 && events >= 0 && (length = recv(events, text, sizeof(text), 0)) > 0) {
        printf("event %.*s\n", (int)length, text);
        fflush(stdout);
        if (memmem(text, (size_t)length, "migrated", 8) != NULL)
            break;
    }
    return 0;
}
