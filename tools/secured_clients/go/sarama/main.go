// Produce and consume with sarama on a secured node: sarama PROPERTIES TOPIC GROUP. Ends with 3 if the login fails, with
// 4 if the user may not write.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"

	"securedclients/properties"
)

// conversation is sarama's side of SCRAM, which it leaves to another package.
type conversation struct{ *scram.ClientConversation }

func (c *conversation) Begin(user, password, authzID string) error {
	client, err := scram.SHA512.NewClient(user, password, authzID)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

// reader is the member of the group: it notes when it has read all values in their order.
type reader struct {
	group string
	next  int
	done  context.CancelFunc
}

func (r *reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (r *reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			if string(message.Key) == r.group && string(message.Value) == strconv.Itoa(r.next) {
				r.next++
			}
			session.MarkMessage(message, "")
			if r.next == properties.Count {
				session.Commit()
				r.done()
				return nil
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func check(err error) {
	var code sarama.KError
	switch {
	case errors.Is(err, sarama.ErrSASLAuthenticationFailed):
		os.Exit(properties.WrongPassword)
	case errors.As(err, &code) && code == sarama.ErrTopicAuthorizationFailed:
		os.Exit(properties.NotAllowed)
	}
	properties.Must(err)
}

func main() {
	settings, topic, group := properties.Read(os.Args[1]), os.Args[2], os.Args[3]
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Net.TLS.Enable, config.Net.TLS.Config = true, properties.TLS(settings)
	config.Net.SASL.Enable, config.Net.SASL.Mechanism = true, sarama.SASLTypeSCRAMSHA512
	config.Net.SASL.User, config.Net.SASL.Password = settings["sasl.username"], settings["sasl.password"]
	config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{} }
	client, err := sarama.NewClient([]string{settings["bootstrap.servers"]}, config)
	check(err)
	producer, err := sarama.NewSyncProducerFromClient(client)
	check(err)
	for i := 0; i < properties.Count; i++ {
		value := sarama.StringEncoder(strconv.Itoa(i))
		_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(group), Value: value})
		check(err)
	}
	consumer, err := sarama.NewConsumerGroupFromClient(group, client)
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	member := &reader{group: group, done: cancel}
	for ctx.Err() == nil {
		check(consumer.Consume(ctx, []string{topic}, member))
	}
	if member.next != properties.Count {
		properties.Must(fmt.Errorf("only %d records were read", member.next))
	}
	check(consumer.Close())
	fmt.Println(properties.Count, "records")
}
