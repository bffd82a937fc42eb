needs() { echo go; }

# Statically linked and without libc, so that no preloaded library can intercept its calls.
setup() {
    head -c 300000 /dev/urandom >data
    cat >main.go <<'END'
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
)

func main() {
	at := "127.0.0.1:" + os.Args[2]
	if os.Args[1] == "server" {
		listener, err := net.Listen("tcp", at)
		for err == nil {
			var conn net.Conn
			conn, err = listener.Accept()
			go func() {
				io.Copy(conn, conn)
				conn.Close()
			}()
		}
		panic(err)
	}
	var all sync.WaitGroup
	var lines [12]string
	for i := range lines {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			lines[i] = echo(at)
		}(i)
	}
	all.Wait()
	for _, line := range lines {
		fmt.Println(line)
	}
}

func echo(at string) string {
	conn, err := net.Dial("tcp", at)
	if err != nil {
		return err.Error()
	}
	data, _ := os.ReadFile("data")
	go func() {
		io.Copy(conn, bytes.NewReader(data))
		conn.(*net.TCPConn).CloseWrite()
	}()
	back, err := io.ReadAll(conn)
	return fmt.Sprintf("%x %v %v", sha256.Sum256(back), err, conn.RemoteAddr().String() == at)
}
END
    GOCACHE=$DIR/cache CGO_ENABLED=0 GO111MODULE=off go build -o echo main.go
}

server() { exec ./echo server "$PORT"; }

client() { ./echo client "$PORT"; }
