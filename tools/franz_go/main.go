// Consume, transform, produce with franz-go: main HOST:PORT[,HOST:PORT ...] SECONDS [848].
//
// A producer writes transactions of 100 numbers for so many seconds and aborts every third; at the same time members of
// a group, one of which leaves and one of which comes later, copy what is committed to another topic with their offsets
// in the same transaction (GroupTransactSession); a reader of committed records counts. With 848 the group is one of the
// new protocol, which franz-go has to be told. Nodes may die meanwhile: what failed is aborted and done again. Ends with
// 1 unless each number is there once.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const inTransaction = 100

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// write gives the number behind the last that was committed, when the time is over.
func write(ctx context.Context, p *kgo.Client, life time.Duration) int {
	n, failed := 0, 0
	for end, t := time.Now().Add(life), 0; time.Now().Before(end); t++ {
		must(p.BeginTransaction())
		abort := t%3 == 2
		promise := kgo.AbortingFirstErrPromise(p)
		for i := 0; i < inTransaction; i++ {
			v := strconv.Itoa(n + i)
			if abort {
				v = "aborted"
			}
			p.Produce(ctx, kgo.StringRecord(v), promise.Promise())
		}
		must(p.Flush(ctx))
		if err := promise.Err(); err != nil {
			fmt.Println("producer:", err)
			must(p.EndTransaction(ctx, kgo.TryAbort))
			failed++
			continue
		}
		must(p.EndTransaction(ctx, kgo.TransactionEndTry(!abort)))
		if !abort {
			n += inTransaction
		}
		time.Sleep(50 * time.Millisecond)
	}
	fmt.Println("numbers", n, "transactions that failed and were aborted:", failed)
	return n
}

func main() {
	seeds := kgo.SeedBrokers(strings.Split(os.Args[1], ",")...)
	// Without it, a node that is killed as soon as a client has connected ends the program: franz-go suspects a lack of SASL.
	retry := kgo.AlwaysRetryEOF()
	seconds, err := strconv.Atoi(os.Args[2])
	must(err)
	life := time.Duration(seconds) * time.Second
	ctx := context.Background()
	if len(os.Args) > 3 && os.Args[3] == "848" {
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
	}
	run := strconv.FormatInt(time.Now().UnixNano(), 36)
	in, out, group := "in-"+run, "out-"+run, "g-"+run
	admin, err := kgo.NewClient(seeds, retry)
	must(err)
	adm := kadm.NewClient(admin)
	made, err := adm.CreateTopics(ctx, 4, -1, nil, in, out)
	must(err)
	must(made.Error())
	p, err := kgo.NewClient(seeds, retry, kgo.DefaultProduceTopic(in), kgo.TransactionalID("p-"+run))
	must(err)
	written := make(chan int, 1)
	go func() { written <- write(ctx, p, life); p.Close() }()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	worker := func(id int, stay time.Duration) {
		defer wg.Done()
		s, err := kgo.NewGroupTransactSession(seeds, retry, kgo.WithContext(ctx), kgo.ConsumerGroup(group), kgo.ConsumeTopics(in),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.TransactionalID(fmt.Sprintf("w%d-%s", id, run)), kgo.DefaultProduceTopic(out),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequireStableFetchOffsets(), kgo.FetchMaxBytes(20000))
		must(err)
		defer s.Close()
		end := time.After(stay)
		for {
			select {
			case <-stop:
				return
			case <-end:
				return
			default:
			}
			pctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			fetches := s.PollRecords(pctx, inTransaction)
			cancel()
			if fetches.NumRecords() == 0 {
				continue
			}
			must(s.Begin())
			fetches.EachRecord(func(r *kgo.Record) { s.Produce(ctx, kgo.SliceRecord(r.Value), nil) })
			ok, err := s.End(ctx, kgo.TryCommit)
			for err != nil { // what became of it is unknown: franz-go wants an abort before the next one may begin
				fmt.Println("worker", id, "end:", ok, err)
				time.Sleep(100 * time.Millisecond)
				ok, err = s.End(ctx, kgo.TryAbort)
			}
		}
	}
	wg.Add(3)
	go worker(1, time.Hour)
	go worker(2, 3*time.Second)
	go func() { time.Sleep(2 * time.Second); worker(3, time.Hour) }()
	c, err := kgo.NewClient(seeds, retry, kgo.ConsumeTopics(out), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(err)
	seen, total := map[string]int{}, -1
	for deadline := time.Now().Add(life + 90*time.Second); len(seen) != total && time.Now().Before(deadline); {
		select {
		case total = <-written:
		default:
		}
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
	if total == 0 || len(seen) != total || doubled > 0 {
		os.Exit(1)
	}
}
