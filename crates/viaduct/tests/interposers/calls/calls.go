// A static Go program that connects with package net and prints the answer of the far end.
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
)

func main() {
	conn, err := net.Dial("tcp", "127.0.0.1:"+os.Args[2])
	if err != nil {
		fmt.Println("refused", err)
		return
	}
	fmt.Fprintln(conn, "hello")
	line, _ := bufio.NewReader(conn).ReadString('\n')
	fmt.Print(line)
}
