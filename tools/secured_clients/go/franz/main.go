// Produce and consume with franz-go on a secured node: franz PROPERTIES TOPIC GROUP. Ends with 3 if the login fails, with
// 4 if the user may not write.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"securedclients/properties"
)

func check(err error) {
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		os.Exit(properties.WrongPassword)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		os.Exit(properties.NotAllowed)
	}
	properties.Must(err)
}

func main() {
	settings, topic, group := properties.Read(os.Args[1]), os.Args[2], os.Args[3]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	login := scram.Auth{User: settings["sasl.username"], Pass: settings["sasl.password"]}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(settings["bootstrap.servers"]),
		kgo.DialTLSConfig(properties.TLS(settings)),
		kgo.SASL(login.AsSha512Mechanism()),
		kgo.ConsumeTopics(topic),
		kgo.ConsumerGroup(group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	check(err)
	check(client.Ping(ctx))
	for i := 0; i < properties.Count; i++ {
		record := &kgo.Record{Topic: topic, Key: []byte(group), Value: []byte(strconv.Itoa(i))}
		check(client.ProduceSync(ctx, record).FirstErr())
	}
	for next := 0; next < properties.Count; {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			if string(record.Key) == group && string(record.Value) == strconv.Itoa(next) {
				next++
			}
		})
	}
	check(client.CommitUncommittedOffsets(ctx))
	client.Close()
	fmt.Println(properties.Count, "records")
}
