// Delayed delivery, table views, Failover subscriptions and exclusive producers with the Go client.
//
// Usage: programs SERVICE_URL COMMAND TOPIC ARGUMENT...; prints JSON lines without times and ids.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

// wait is longer than any delay; a message that is not there by then is lost.
const wait = 90 * time.Second

// tick is how much before the time asked for a broker may deliver.
const tick = time.Second

// A table view holds what was written last for each key; an empty value removes the key.
var (
	first    = [][2]string{{"a", "1"}, {"b", "2"}, {"a", "3"}, {"c", "4"}, {"c", ""}}
	second   = [][2]string{{"b", "5"}, {"d", "6"}, {"a", ""}, {"e", "7"}}
	listened = []string{"b", "d", "e"}
)

type line map[string]any

var printing sync.Mutex

func show(l line) {
	text, err := json.Marshal(l)
	check(err)
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(text))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func partition(topic string) int {
	if at := strings.LastIndex(topic, "-partition-"); at >= 0 {
		return number(topic[at+len("-partition-"):])
	}
	return -1
}

func subscribe(client pulsar.Client, topic, subscription string, kind pulsar.SubscriptionType) pulsar.Consumer {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: subscription, Type: kind, Name: "c",
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	check(err)
	return consumer
}

func producer(client pulsar.Client, topic string) pulsar.Producer {
	made, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	check(err)
	return made
}

func soon() context.Context {
	ctx, _ := context.WithTimeout(context.Background(), wait) //nolint:govet // the program ends before the limit
	return ctx
}

func delayedSend(client pulsar.Client, topic string, delays []string) {
	subscribe(client, topic, "exclusive", pulsar.Exclusive).Close()
	subscribe(client, topic, "shared", pulsar.Shared).Close()
	to := producer(client, topic)
	for index, delay := range delays {
		after := time.Duration(number(delay)) * time.Second
		due := time.Now().Add(after)
		message := &pulsar.ProducerMessage{
			Payload:    []byte(delay),
			Properties: map[string]string{"due": strconv.FormatInt(due.UnixMilli(), 10)},
		}
		if after > 0 && index%2 == 0 {
			message.DeliverAfter = after
		} else if after > 0 {
			message.DeliverAt = due
		}
		_, err := to.Send(soon(), message)
		check(err)
		show(line{"sent": delay})
	}
}

func receive(client pulsar.Client, topic, name string, kind pulsar.SubscriptionType, count int) {
	consumer := subscribe(client, topic, name, kind)
	for range count {
		message, err := consumer.Receive(soon())
		check(err)
		due := time.UnixMilli(int64(number(message.Properties()["due"])))
		show(line{
			"subscription": name, "value": string(message.Payload()),
			"early": time.Now().Add(tick).Before(due), "redeliveries": message.RedeliveryCount(),
		})
		check(consumer.Ack(message))
	}
	consumer.Close()
}

func delayedReceive(client pulsar.Client, topic string, count int) {
	receive(client, topic, "shared", pulsar.Shared, count)
	reader, err := client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	check(err)
	values := []string{}
	for range count {
		message, err := reader.Next(soon())
		check(err)
		values = append(values, string(message.Payload()))
	}
	show(line{"reader": values})
}

func tableView(client pulsar.Client, topic string) {
	to, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, Schema: pulsar.NewBytesSchema(nil), // in batches: Go does not read an empty message outside one
	})
	check(err)
	put := func(pairs [][2]string) {
		for _, pair := range pairs {
			_, err := to.Send(soon(), &pulsar.ProducerMessage{Key: pair[0], Payload: []byte(pair[1])})
			check(err)
		}
	}
	put(first)
	view, err := client.CreateTableView(pulsar.TableViewOptions{
		Topic: topic, Schema: pulsar.NewBytesSchema(nil), SchemaValueType: reflect.TypeOf([]byte{}),
	})
	check(err)
	entries := func() map[string]string {
		found := map[string]string{}
		for key, value := range view.Entries() {
			found[key] = plain(value)
		}
		return found
	}
	show(line{"entries": entries(), "get": plain(view.Get("a")), "missing": view.Get("c")})
	var lock sync.Mutex
	heard := map[string]string{}
	check(view.ForEachAndListen(func(key string, value interface{}) error {
		lock.Lock()
		defer lock.Unlock()
		heard[key] = plain(value)
		return nil
	}))
	lock.Lock()
	heard = map[string]string{}
	lock.Unlock()
	put(second)
	for deadline := time.Now().Add(wait); ; time.Sleep(50 * time.Millisecond) {
		lock.Lock()
		updates := [][]string{}
		for _, key := range listened {
			if value, ok := heard[key]; ok {
				updates = append(updates, []string{key, value})
			}
		}
		lock.Unlock()
		if len(updates) == len(listened) && !view.ContainsKey("a") {
			sort.Slice(updates, func(i, j int) bool { return updates[i][0] < updates[j][0] })
			show(line{"updates": updates})
			break
		}
		if time.Now().After(deadline) {
			check(fmt.Errorf("the view stays at %v", entries()))
		}
	}
	show(line{"entries": entries()})
	view.Close()
}

func plain(value interface{}) string {
	switch value := value.(type) {
	case *[]byte:
		return string(*value)
	case []byte:
		return string(value)
	}
	return fmt.Sprint(value)
}

type listener struct{}

func (listener) BecameActive(_ pulsar.Consumer, topic string, _ int32) {
	show(line{"active": true, "partition": partition(topic)})
}

func (listener) BecameInactive(_ pulsar.Consumer, topic string, _ int32) {
	show(line{"active": false, "partition": partition(topic)})
}

// failover receives until it is killed; messages whose value begins with "hold" stay unacknowledged.
func failover(client pulsar.Client, topic, name string) {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "s", Type: pulsar.Failover, Name: name, EventListener: listener{},
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	check(err)
	show(line{"state": "subscribed"})
	for {
		message, err := consumer.Receive(context.Background())
		check(err)
		value := string(message.Payload())
		if !strings.HasPrefix(value, "hold") {
			check(consumer.Ack(message))
		}
		show(line{"partition": partition(message.Topic()), "value": value})
	}
}

func exclusiveProducer(client pulsar.Client, topic, name, mode string) {
	access := pulsar.ProducerAccessModeExclusive
	if mode == "wait" {
		access = pulsar.ProducerAccessModeWaitForExclusive
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	show(line{"state": "opening"})
	to, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Name: name, ProducerAccessMode: access})
	if err != nil {
		// "server error: ProducerFenced: ...": the code is the same for all servers, the words are not.
		code := strings.Split(err.Error(), ": ")
		show(line{"state": "refused", "error": code[min(1, len(code)-1)]})
		return
	}
	show(line{"state": "open"})
	_, err = to.Send(soon(), &pulsar.ProducerMessage{Payload: []byte(name)})
	check(err)
	show(line{"state": "sent"})
	<-interrupted
	to.Close()
	show(line{"state": "closed"})
}

func bytesSchema(client pulsar.Client, topic string) {
	consumer := subscribe(client, topic, "s", pulsar.Exclusive)
	for _, schema := range []pulsar.Schema{pulsar.NewBytesSchema(nil), pulsar.NewBytesSchema(map[string]string{"k": "v"})} {
		to, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: schema})
		check(err)
		_, err = to.Send(soon(), &pulsar.ProducerMessage{Value: []byte("of bytes")})
		check(err)
		to.Close()
		message, err := consumer.Receive(soon())
		check(err)
		show(line{"value": string(message.Payload()), "schema version": hex.EncodeToString(message.SchemaVersion())})
	}
}

func main() {
	url, command, topic, rest := os.Args[1], os.Args[2], os.Args[3], os.Args[4:]
	logger := logrus.New() // to standard error
	logger.SetLevel(logrus.WarnLevel)
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: url, Logger: log.NewLoggerWithLogrus(logger)})
	check(err)
	switch command {
	case "delayed":
		delayedSend(client, topic, rest)
		receive(client, topic, "exclusive", pulsar.Exclusive, len(rest))
		delayedReceive(client, topic, len(rest))
	case "delayed-send":
		delayedSend(client, topic, rest)
	case "delayed-receive":
		delayedReceive(client, topic, number(rest[0]))
	case "table-view":
		tableView(client, topic)
	case "failover":
		failover(client, topic, rest[0])
	case "exclusive-producer":
		exclusiveProducer(client, topic, rest[0], rest[1])
	case "bytes-schema":
		bytesSchema(client, topic)
	default:
		check(fmt.Errorf("unknown command %q", command))
	}
	client.Close()
}
