// Gets a page by name, without libc: Go's own resolver, in a static program.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	answer, err := http.Get(os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	text, _ := io.ReadAll(answer.Body)
	fmt.Print(string(text))
}
