// Consume, transform, produce with franz-go: main HOST:PORT [848].
//
// A producer writes transactions of 100 numbers and aborts every third; members of a group, one of which leaves and one
// of which comes later, copy what is committed to another topic with their offsets in the same transaction
// (GroupTransactSession); a reader of committed records counts. With 848 the group is one of the new protocol, which
// franz-go has to be told. Ends with 1 unless each number is there once.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	seeds := os.Args[1]
	ctx := context.Background()
	if len(os.Args) > 2 && os.Args[2] == "848" {
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
	}
	run := strconv.FormatInt(time.Now().UnixNano(), 36)
	in, out, group := "in-"+run, "out-"+run, "g-"+run
	admin, err := kgo.NewClient(kgo.SeedBrokers(seeds))
	must(err)
	adm := kadm.NewClient(admin)
	_, err = adm.CreateTopics(ctx, 4, 1, nil, in, out)
	must(err)
	const total = 4000
	p, err := kgo.NewClient(kgo.SeedBrokers(seeds), kgo.DefaultProduceTopic(in), kgo.TransactionalID("p-"+run))
	must(err)
	n := 0
	for t := 0; n < total; t++ {
		must(p.BeginTransaction())
		abort := t%3 == 2
		for i := 0; i < 100; i++ {
			v := strconv.Itoa(n + i)
			if abort {
				v = "aborted"
			}
			p.Produce(ctx, kgo.StringRecord(v), nil)
		}
		must(p.Flush(ctx))
		how := kgo.TryCommit
		if abort {
			how = kgo.TryAbort
		} else {
			n += 100
		}
		must(p.EndTransaction(ctx, how))
	}
	p.Close()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	worker := func(id int, life time.Duration) {
		defer wg.Done()
		s, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(seeds), kgo.WithContext(ctx), kgo.ConsumerGroup(group), kgo.ConsumeTopics(in),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.TransactionalID(fmt.Sprintf("w%d-%s", id, run)), kgo.DefaultProduceTopic(out),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequireStableFetchOffsets(), kgo.FetchMaxBytes(20000))
		must(err)
		defer s.Close()
		end := time.After(life)
		for {
			select {
			case <-stop:
				return
			case <-end:
				return
			default:
			}
			pctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			fetches := s.PollRecords(pctx, 50)
			cancel()
			if fetches.NumRecords() == 0 {
				continue
			}
			must(s.Begin())
			fetches.EachRecord(func(r *kgo.Record) { s.Produce(ctx, kgo.SliceRecord(r.Value), nil) })
			ok, err := s.End(ctx, kgo.TryCommit)
			if err != nil {
				fmt.Println("worker", id, "end:", ok, err)
			}
		}
	}
	wg.Add(3)
	go worker(1, time.Hour)
	go worker(2, 3*time.Second)
	go func() { time.Sleep(2 * time.Second); worker(3, time.Hour) }()
	c, err := kgo.NewClient(kgo.SeedBrokers(seeds), kgo.ConsumeTopics(out), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(err)
	seen := map[string]int{}
	for deadline := time.Now().Add(60 * time.Second); len(seen) < total && time.Now().Before(deadline); {
		pctx, cancel := context.WithTimeout(ctx, time.Second)
		c.PollFetches(pctx).EachRecord(func(r *kgo.Record) { seen[string(r.Value)]++ })
		cancel()
	}
	time.Sleep(time.Second)
	close(stop)
	wg.Wait()
	pctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	c.PollFetches(pctx).EachRecord(func(r *kgo.Record) { seen[string(r.Value)]++ })
	cancel()
	doubled := 0
	for _, times := range seen {
		if times != 1 {
			doubled++
		}
	}
	fmt.Println("numbers", len(seen), "of", total, "not once:", doubled, "aborted ones seen:", seen["aborted"])
	if len(seen) != total || doubled > 0 {
		os.Exit(1)
	}
}
