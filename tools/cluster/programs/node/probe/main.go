// Probe is the only program of the image with which the cluster's own tests examine it from inside:
//
//	probe serve PORT        answer every HTTP request with this machine's name
//	probe get URL           fetch and print
//	probe lookup NAME       resolve and print the addresses
//	probe exit CODE [TEXT]  print and end
//	probe eat               take memory until the kernel kills it
//	probe stay SECONDS      on SIGTERM print a line, and end that many seconds later
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const limit = 5 * time.Second

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("usage: serve, get, lookup, exit, eat, stay"))
	}
	arguments := append(os.Args[2:], "", "")
	switch os.Args[1] {
	case "serve":
		fail(serve(arguments[0]))
	case "get":
		fail(get(arguments[0]))
	case "lookup":
		addresses, err := net.LookupHost(arguments[0])
		fmt.Println(strings.Join(addresses, " "))
		fail(err)
	case "exit":
		fmt.Println(arguments[1])
		os.Exit(number(arguments[0]))
	case "eat":
		eat()
	case "stay":
		stay(number(arguments[0]))
	default:
		fail(fmt.Errorf("unknown: %s", os.Args[1]))
	}
}

func serve(port string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	answer := func(to http.ResponseWriter, _ *http.Request) { fmt.Fprintln(to, name) }
	return http.ListenAndServe(":"+port, http.HandlerFunc(answer))
}

func get(url string) error {
	client := http.Client{Timeout: limit}
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}

func eat() {
	var eaten [][]byte
	for {
		bite := make([]byte, 1<<20)
		for at := 0; at < len(bite); at += os.Getpagesize() {
			bite[at] = 1
		}
		eaten = append(eaten, bite)
		fmt.Println(len(eaten), "MiB")
	}
}

func stay(seconds int) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	fmt.Println("here")
	<-asked
	fmt.Println("asked to go")
	time.Sleep(time.Duration(seconds) * time.Second)
	fmt.Println("gone")
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	fail(err)
	return value
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
