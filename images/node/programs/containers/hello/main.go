// hello answers every HTTP request on port 8080 with the name of its Pod, and ends well when it is asked to.
// With a URL as its argument, it prints the answer of that server instead.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 {
		if err := ask(os.Args[1]); err != nil {
			log.Fatal(err)
		}
		return
	}
	name, err := os.Hostname()
	if err != nil {
		log.Fatal(err)
	}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	answer := func(response http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(response, "hello from %s\n", name)
	}
	server := &http.Server{Addr: ":8080", Handler: http.HandlerFunc(answer)}
	ended := make(chan error, 1)
	go func() {
		<-stop.Done()
		ended <- server.Shutdown(context.Background())
	}()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
}

// ask prints the answer of a server. A new Pod may reach it some time later, and a restart of the Pod would take longer.
func ask(url string) error {
	client := http.Client{Timeout: 5 * time.Second}
	deadline := time.Now().Add(time.Minute)
	answer, err := client.Get(url)
	for err != nil && time.Now().Before(deadline) {
		time.Sleep(200 * time.Millisecond)
		answer, err = client.Get(url)
	}
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}
