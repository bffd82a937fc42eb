needs() { echo go; }

# Static, without libc: nothing that a library could stand in for.
setup() {
    head -c 300000 /dev/urandom >data
    cat >main.go <<'END'
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
)

func main() {
	at := "127.0.0.1:" + os.Args[2]
	if os.Args[1] == "server" {
		panic(http.ListenAndServe(at, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.Write(body)
		})))
	}
	data, _ := os.ReadFile("data")
	var all sync.WaitGroup
	var lines [12]string
	for i := range lines {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			response, err := http.Post("http://"+at+"/", "text/plain", bytes.NewReader(data))
			if err != nil {
				lines[i] = err.Error()
				return
			}
			body, err := io.ReadAll(response.Body)
			lines[i] = fmt.Sprintf("%x %v", sha256.Sum256(body), err)
		}(i)
	}
	all.Wait()
	for _, line := range lines {
		fmt.Println(line)
	}
}
END
    CGO_ENABLED=0 GO111MODULE=off go build -o echo main.go
}

server() { exec ./echo server "$PORT"; }

client() { ./echo client "$PORT"; }
