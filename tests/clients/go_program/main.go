// Calls of Pulsar's Go client that a test watches from outside; each prints one line per event.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

func main() {
	what, url, target := os.Args[1], os.Args[2], os.Args[3]
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	options := pulsar.ClientOptions{URL: url, Logger: log.NewLoggerWithLogrus(quiet)}
	options.EnableTransaction = what == "transaction"
	started := time.Now()
	client, err := pulsar.NewClient(options)
	if err == nil {
		defer client.Close()
		switch what {
		case "produce":
			err = produce(client, target)
		case "pattern":
			_, err = client.Subscribe(pulsar.ConsumerOptions{TopicsPattern: target, SubscriptionName: "s"})
		case "wait":
			err = waitForExclusive(client, target)
		}
	}
	fmt.Printf("ended after %d ms: %v\n", time.Since(started).Milliseconds(), err)
}

// produce sends until it fails, with messages that would wait a minute for their receipt.
func produce(client pulsar.Client, topic string) error {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, SendTimeout: time.Minute})
	if err != nil {
		return err
	}
	for first := true; ; first = false {
		if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("x")}); err != nil {
			return err
		}
		if first {
			fmt.Println("sending")
		}
	}
}

// waitForExclusive opens a producer that waits for the topic, while another one has it.
func waitForExclusive(client pulsar.Client, topic string) error {
	first, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive,
	})
	if err != nil {
		return err
	}
	_, err = client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	fmt.Println("sharing:", err)
	opened := make(chan error)
	go func() {
		second, err := client.CreateProducer(pulsar.ProducerOptions{
			Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeWaitForExclusive,
		})
		if err == nil {
			_, err = second.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("x")})
		}
		opened <- err
	}()
	first.Close()
	return <-opened
}
