// Guess the version of each broker from its ApiVersions, as kminion and Redpanda Console do: guess HOST:PORT.
//
// Ends with 1 unless every guess is a 4.x.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]))
	must(err)
	defer client.Close()
	brokers, err := kadm.NewClient(client).ApiVersions(context.Background())
	must(err)
	for _, broker := range brokers {
		must(broker.Err)
		guess := kversion.FromApiVersionsResponse(broker.Raw()).VersionGuess()
		fmt.Printf("broker %d is guessed to be %s\n", broker.NodeID, guess)
		if !strings.HasPrefix(guess, "v4.") {
			os.Exit(1)
		}
	}
}
